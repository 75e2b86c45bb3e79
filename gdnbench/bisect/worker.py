"""The process that runs trials, told by JSON lines on a pipe.

`python -m gdnbench.bisect.worker REQUESTS REPLIES`: file descriptors of the two pipes. A request is a
`Trial`; the first reply says that its kernel was imported, others that a record was replayed, the last is its
verdict or why it has none. What kernels print goes to stderr.
"""

from __future__ import annotations

import sys
from functools import partial

from gdnbench.bisect import trial
from gdnbench.bisect.answering import answered
from gdnbench.bisect.prober import TOLD
from gdnbench.printable import printable
from gdnbench.replay.process import Message, Tell, serve


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve(int(requests), int(replies), lambda tell: partial(answer, tell))


def answer(tell: Tell, request: Message) -> Message:
    def told(line: str) -> None:
        print(printable(line), file=sys.stderr)
        tell({TOLD: line})

    def work() -> Message:
        asked = trial.Trial.from_json(request["trial"])
        trial.imports(asked.kernel, asked.on)
        tell({TOLD: "imported"})
        return {"verdict": trial.run(asked, told).to_json()}

    return answered(work)


if __name__ == "__main__":
    main(sys.argv[1:])
