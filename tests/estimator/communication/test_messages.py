"""Messages between ranks: in order for each tag, whatever their type; nothing for who lacks the token."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest

from estimator.communication.messages import Messenger
from profiles.errors import MachineError
from tests.processes import HANGS_S

HOST = "127.0.0.1"


class Board:
    """What ranks publish, in one process."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.known: dict[str, Event] = {}

    def publish(self, name: str, text: str) -> None:
        self.texts[name] = text
        self.known.setdefault(name, Event()).set()

    def look_up(self, name: str) -> str:
        assert self.known.setdefault(name, Event()).wait(HANGS_S)
        return self.texts[name]


def messenger(rank: int, board: Board, timeout_s: float = 30.0) -> Messenger:
    return Messenger(rank, HOST, publish=board.publish, look_up=board.look_up, timeout_s=timeout_s)


@pytest.fixture
def pair() -> Iterator[tuple[Messenger, Messenger]]:
    board = Board()
    first, second = messenger(0, board), messenger(1, board)
    yield first, second
    first.close()
    second.close()


def test_messages_of_a_tag_come_in_order_and_those_of_others_do_not_mind(pair: tuple[Messenger, Messenger]) -> None:
    first, second = pair
    sent = [np.arange(size, dtype=np.float32).reshape(-1, 3) for size in (3, 300_000, 0, 6)]
    sendings = [first.send(1, number % 2, array) for number, array in enumerate(sent)]
    for tag in (1, 0):
        for array in sent[tag::2]:
            np.testing.assert_array_equal(second.take(0, tag).view(np.float32).reshape(-1, 3), array)
    for sending in sendings:
        sending.wait()
        assert sending.is_completed()


def test_both_ways_at_once_and_to_oneself(pair: tuple[Messenger, Messenger]) -> None:
    first, second = pair
    large = np.ones(4_000_000, np.float32)
    first.send(1, 5, large)
    second.send(0, 5, 2 * large)
    first.send(0, 5, 3 * large)
    assert first.take(1, 5).view(np.float32).sum() == 2 * large.size
    assert second.take(0, 5).view(np.float32).sum() == large.size
    assert first.take(0, 5).view(np.float32).sum() == 3 * large.size


def test_a_message_that_does_not_come_is_said() -> None:
    alone = messenger(0, Board(), timeout_s=0.05)
    with pytest.raises(MachineError, match=r"rank 0 waited 0\.05 s for a message from rank 1"):
        alone.take(1, 0)
    alone.close()


def test_who_lacks_the_token_is_not_heard() -> None:
    board = Board()
    receiver, sender = messenger(0, board), messenger(1, board)
    _, port, host = board.look_up("messages/0").split(" ")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as stranger:
        stranger.sendall(bytes(16) + b"".join(number.to_bytes(8, "big") for number in (1, 7, 4)) + b"evil")
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b"", "the receiver hangs up"
    sender.send(0, 7, np.array([1.0]))
    assert receiver.take(1, 7).view(np.float64).tolist() == [1.0]
    receiver.close()
    sender.close()
