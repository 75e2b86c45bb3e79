"""The process that runs trials, told by JSON lines on a pipe.

`python -m gdnbench.bisect.worker REQUESTS REPLIES`: file descriptors of the two pipes. A request is a
`Trial`; the first reply says that its kernel was imported, the last is its verdict or why it has none. What
kernels print goes to stderr.
"""

from __future__ import annotations

import sys
from functools import partial

from gdnbench.bisect import trial
from gdnbench.errors import CannotRunError, GdnbenchError, StoreError
from gdnbench.printable import printable
from gdnbench.replay.process import Message, Tell, serve


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve(int(requests), int(replies), lambda tell: partial(answer, tell))


def answer(tell: Tell, request: Message) -> Message:
    try:
        asked = trial.Trial.from_json(request["trial"])
        trial.imports(asked)
        tell({"imported": True})
        found = trial.run(asked, lambda line: print(printable(line), file=sys.stderr))
    except CannotRunError as error:
        return {"cannot_run": str(error)}
    except StoreError as error:  # no matter which kernel asks
        return {"store": str(error)}
    except GdnbenchError as error:
        return {"bad_input": str(error)}
    return {"verdict": found.to_json()}


if __name__ == "__main__":
    main(sys.argv[1:])
