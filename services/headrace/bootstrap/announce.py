"""What a process says on standard output when it serves: one JSON object, for the supervisor or whoever started it."""

import json


def ready(**facts: object) -> None:
    """Print the one line. Nothing else ever goes to standard output of a service."""
    print(json.dumps({name: str(fact) for name, fact in facts.items()}), flush=True)
