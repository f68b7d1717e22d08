"""durun: a run manager that makes long work durable.

The rooms, in the order in which one may import another:

    values      what data is made of
    errors      every refusal, with its exit code
    plan        what a person may write
    machine     the rules; pure
    pins        what a run took with it, and whether it has drifted; pure
    store       the file: one transaction per move
    effects     the outside world: commands and their keeper
    outbox      takes an intent, acts, reports the outcome
    messages    delivers what runs have left to be delivered
    turns       what a run shares with others: limits and groups
    engine      the only loop of one run
    work        many runs in one process
    render      values to text: tables, JSON, drawn errors
    cli         parse, call, show
"""

__version__ = "0.1.0"
