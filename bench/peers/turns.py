"""Times on a warm card: calls in captured graphs, replayed in turns."""
import functools
import math
import time

import torch

FILL_MS, LAUNCHES_MAX = 2.0, 32
WARM_MS = 300.0  # rates of a card that has just begun to work are of no use to anybody
AHEAD = 1500000  # clocks by which the host is ahead of calls that no graph holds


@functools.cache
def capture_stream():
    return torch.cuda.Stream()


class Replay:
    """As many calls as fill FILL_MS, in one graph; where they cannot be captured, made one by one while
    the device sleeps. Holds `run`, and with it the memory that the graph works on."""

    def __init__(self, run, device, capture=True):
        self.run, self.device, self.launches, self.timing = run, device, 1, "calls"
        if device == "cpu" or not capture:
            return
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        self.launches = max(1, min(LAUNCHES_MAX, math.ceil(FILL_MS / self.once())))
        self.graph = torch.cuda.CUDAGraph()
        try:
            self.capture()
            self.timing = "replays"
        except Exception:
            # A capture that fails may leave its stream behind as the current one.
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.synchronize()
            run()

    def capture(self):
        """As torch.cuda.graph does, which empties PyTorch's cache of memory before each capture: what a
        case has freed is then allocated anew, tens of milliseconds a case."""
        stream = capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.graph.capture_begin()
            try:
                for _ in range(self.launches):
                    self.run()
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def once(self):
        """Milliseconds of one call."""
        if self.device == "cpu":
            start = time.perf_counter()
            self.run()
            return 1e3 * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.timing == "calls":
            torch.cuda._sleep(AHEAD)
        begin.record()
        if self.timing == "replays":
            self.graph.replay()
        else:
            for _ in range(self.launches):
                self.run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / self.launches


def turns(replays, rounds):
    """Milliseconds of each in each of so many rounds, in which all have their turn."""
    times = {name: [] for name in replays}
    for i in range(rounds + 1):  # the first is not counted
        for name, replay in replays.items():
            ms = replay.once()
            if i:
                times[name].append(ms)
    return times


@functools.cache
def warmer():
    return torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)


def warm(ms=WARM_MS):
    """Until the card has worked for so long."""
    a = warmer()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    spent = 0.0
    while spent < ms:
        begin.record()
        for _ in range(4):
            torch.mm(a, a)
        end.record()
        end.synchronize()
        spent += begin.elapsed_time(end)
