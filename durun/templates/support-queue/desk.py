"""The hands of the support desk: reads a mailbox, hands mail in by SMTP. Standard library only.

    desk.py list MAILBOX                       the messages, as JSON
    desk.py show MAILBOX ID                    one of them: whom it is from, its subject, its text
    desk.py send MAILBOX ID HOST:PORT SENDER   answers it with what comes on stdin
    desk.py id                                 the Message-ID that the answer has, whatever attempt sends it
    desk.py note JOURNAL ID                    adds a line to the journal

An answer is identified by $DURUN_IDEMPOTENCY_KEY: its Message-ID is the same in every attempt, so that a server that knows it drops
a repeat. `send` ends with 0 where the server has taken the mail, with 1 where it certainly has not, and with 129 where nobody
knows: the mail was handed over, and the connection was gone before the server said a word.
"""

import contextlib
import hashlib
import json
import mailbox
import os
import smtplib
import sys
from email.header import decode_header, make_header
from email.message import EmailMessage, Message
from email.utils import parseaddr

NOBODY_KNOWS = 129


def id_of(message: Message) -> str:
    """The Message-ID, or for a message that has none a digest of it."""
    said = " ".join(str(message.get("Message-ID", "")).split())
    return said or "<" + hashlib.sha256(message.as_bytes()).hexdigest()[:32] + "@digest>"


def header(message: Message, name: str) -> str:
    """A header as text on one line."""
    return " ".join(str(make_header(decode_header(message.get(name, "")))).split())


def messages(path: str) -> dict[str, Message]:
    """The messages of a mailbox by id, each once, in their order. One that a mailer sent by itself is not answered."""
    if not os.path.isfile(path):
        sys.exit(f"{path} is no mailbox")
    found: dict[str, Message] = {}
    for message in mailbox.mbox(path, create=False):
        if not automatic(message) and whose(message):
            found.setdefault(id_of(message), message)
    return found


def automatic(message: Message) -> bool:
    return message.get("Auto-Submitted", "no").lower() != "no" or message.get("Precedence", "") in ("bulk", "list", "junk")


def whose(message: Message) -> str:
    """The address that an answer goes to; '' where there is none."""
    return parseaddr(str(message.get("Reply-To") or message.get("From", "")))[1]


def text_of(message: Message) -> str:
    """The first plain text in a message."""
    for part in message.walk():
        if part.get_content_type() == "text/plain":
            raw = part.get_payload(decode=True)
            return raw.decode(part.get_content_charset("utf-8"), "replace") if isinstance(raw, bytes) else ""
    return ""


def listed(path: str) -> list[dict[str, str]]:
    found = messages(path).items()
    return [
        {"id": id, "label": str(n), "from": header(m, "From"), "subject": header(m, "Subject")}
        for n, (id, m) in enumerate(found, 1)
    ]


def one(path: str, id: str) -> Message:
    found = messages(path).get(id)
    if found is None:
        sys.exit(f"{path} has no message {id}")
    return found


def new_id() -> str:
    return f"<{os.environ['DURUN_IDEMPOTENCY_KEY']}@support-queue>"


def answer_to(message: Message, id: str, sender: str, text: str) -> EmailMessage:
    """The answer as it goes out."""
    subject = header(message, "Subject")
    answer = EmailMessage()
    answer["From"], answer["To"] = sender, whose(message)
    answer["Subject"] = subject if subject.lower().startswith("re:") else f"Re: {subject}"
    answer["Message-ID"], answer["In-Reply-To"], answer["Auto-Submitted"] = new_id(), id, "auto-replied"
    answer.set_content(text)
    return answer


def send(answer: EmailMessage, where: str) -> None:
    """Hands the answer in, and says whether the server has it."""
    host, _, port = where.rpartition(":")
    try:
        server = smtplib.SMTP(host, int(port), timeout=60)
        server.ehlo_or_helo_if_needed()
        for code, said in (server.mail(parseaddr(answer["From"])[1]), server.rcpt(answer["To"]), server.docmd("DATA")):
            if code not in (250, 251, 354):
                raise smtplib.SMTPResponseException(code, said)
    except (OSError, smtplib.SMTPException) as e:
        sys.exit(f"it is not sent: {e}")
    try:
        lines = answer.as_bytes().replace(b"\r\n", b"\n").split(b"\n")
        server.send(b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines).rstrip(b"\r\n") + b"\r\n.\r\n")
        code, said = server.getreply()
    except (OSError, smtplib.SMTPException) as e:
        print(f"it was handed over, and nobody knows what became of it: {e}", file=sys.stderr)
        sys.exit(NOBODY_KNOWS)
    if code != 250:
        sys.exit(f"it is not sent: {code} {said.decode('utf-8', 'replace')}")
    with contextlib.suppress(OSError, smtplib.SMTPException):
        server.quit()  # the server has it, whatever it says to goodbye


def main(verb: str, *words: str) -> None:
    match verb, words:
        case "list", (path,):
            print(json.dumps(listed(path)))
        case "show", (path, id):
            message = one(path, id)
            print(f"From: {header(message, 'From')}\nSubject: {header(message, 'Subject')}\n\n{text_of(message)}")
        case "send", (path, id, where, sender):
            send(answer_to(one(path, id), id, sender, sys.stdin.read()), where)
            print(new_id())
        case "id", ():
            print(new_id())
        case "note", (path, id):
            with open(path, "a", encoding="utf-8") as f:
                f.write(id + "\n")
                f.flush()
                os.fsync(f.fileno())
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
