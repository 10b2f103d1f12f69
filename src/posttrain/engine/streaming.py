"""Text as it is sampled."""

from collections.abc import Callable, Sequence

from posttrain.background import all_of
from posttrain.data.chat import ChatFormat
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.types import Completion, Engine, Request

CUT = "\N{REPLACEMENT CHARACTER}"  # how a letter is decoded of which some bytes are still to come


def streamed(
    engine: Engine, requests: Sequence[Request], chat: ChatFormat, show: Callable[[int, str], object]
) -> list[Completion]:
    """As `Engine.generate`; `show` gets the number of a request and its new text as it comes, in whole letters."""
    scheduler = Scheduler(engine)
    client = Client(scheduler)

    async def one(number: int, request: Request) -> Completion:
        ids: list[int] = []
        shown = 0

        def told(new: Sequence[int]) -> None:
            nonlocal shown
            ids.extend(new)
            text = chat.decode(ids).rstrip(CUT)
            show(number, text[shown:])
            shown = len(text)

        done = await client.submit(request, on_new=told)
        if rest := chat.decode(done.token_ids)[shown:]:
            show(number, rest)
        return done

    return scheduler.run(client, all_of(one(*each) for each in enumerate(requests)))
