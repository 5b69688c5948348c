"""Records that their own producer has sent again under another epoch."""

from __future__ import annotations

import pytest

from fleet.chaos.epochs import Life, lives, repeated_partitions, sent_again
from fleet.demo.audit import Place
from fleet.demo.history import Event, Record

# As Kafka 4 prints a log in which librdkafka 2.16.1 repeated a record while brokers were restarted.
DUMP = """\
Dumping /data/kafka-1/chaos-idempotent-2/00000000000000000000.log
Log starting offset: 0
baseOffset: 528 lastOffset: 528 count: 1 baseSequence: 528 lastSequence: 528 producerId: 0 producerEpoch: 0 \
partitionLeaderEpoch: 1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 134556 CreateTime: 1795531193010 size: 270 magic: 2 compresscodec: none \
crc: 4192943357 isvalid: true
baseOffset: 529 lastOffset: 531 count: 3 baseSequence: 0 lastSequence: 2 producerId: 0 producerEpoch: 1 \
partitionLeaderEpoch: 2 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 135096 CreateTime: 1795531193035 size: 270 magic: 2 compresscodec: none \
crc: 2076864982 isvalid: true
baseOffset: 532 lastOffset: 532 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 \
partitionLeaderEpoch: 2 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 135366 CreateTime: 1795531193066 size: 270 magic: 2 compresscodec: none \
crc: 44796722 isvalid: true
baseOffset: 533 lastOffset: 533 count: 1 baseSequence: 3 lastSequence: 3 producerId: 0 producerEpoch: 2 \
partitionLeaderEpoch: 2 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty \
position: 135636 CreateTime: 1795531193099 size: 270 magic: 2 compresscodec: none \
crc: 1139161993 isvalid: true
"""


def entry(offset: int, sequence: int, partition: int = 2) -> Event:
    return Event(0.0, partition, Record(7, sequence), offset)


def test_who_wrote_what_is_read_from_a_dump_of_the_log() -> None:
    assert lives(DUMP) == {528: Life(0, 0), 529: Life(0, 1), 530: Life(0, 1), 531: Life(0, 1)}


LOG = [entry(0, 0), entry(1, 1), entry(2, 1), entry(3, 2), entry(0, 1, partition=0)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(Life(4, 0), Life(4, 1), {(2, 2)}, id="sent again under a later epoch"),
        pytest.param(Life(4, 1), Life(4, 1), set(), id="one epoch: the broker should have known it"),
        pytest.param(Life(4, 1), Life(4, 0), set(), id="an epoch that had ended"),
        pytest.param(Life(4, 0), Life(5, 1), set(), id="another producer"),
        pytest.param(None, Life(4, 1), set(), id="not known who wrote the first"),
        pytest.param(Life(4, 0), None, set(), id="not known who wrote it again"),
    ],
)
def test_only_a_later_epoch_of_the_same_producer_explains_a_record_that_is_there_twice(
    before: Life | None, after: Life | None, expected: set[Place]
) -> None:
    written = {place: life for place, life in (((2, 1), before), ((2, 2), after)) if life is not None}
    assert sent_again(LOG, written) == expected


def test_a_record_that_is_there_twice_in_one_epoch_is_not_explained_by_an_earlier_one() -> None:
    log = [entry(offset, 1) for offset in range(4)]
    written = {(2, offset): Life(4, epoch) for offset, epoch in enumerate((0, 1, 1, 2))}
    assert sent_again(log, written) == {(2, 1), (2, 3)}


def test_logs_are_dumped_where_a_record_is_there_twice() -> None:
    assert repeated_partitions(LOG) == {2}
    assert repeated_partitions(LOG[3:]) == set()
