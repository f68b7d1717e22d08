LANGUAGE = 1  # the newest version of the plan language that this durun knows
