"""`python -m topicality` is the command `topicality`."""

from topicality.doors.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
