"""Records that their own producer has sent again under another epoch."""

from __future__ import annotations

import pytest

from fleet.drills.workload.audit import Place
from fleet.drills.workload.history import Event, Record
from tests.chaos.seeded.epochs import Life, lives, repeated_partitions, sent_again


def batch(first: int, last: int, sequence: int, producer_id: int, epoch: int, *, transactional: bool) -> str:
    """As Kafka 4 prints one."""
    count = last - first + 1
    return (
        f"baseOffset: {first} lastOffset: {last} count: {count} baseSequence: {sequence} "
        f"lastSequence: {sequence + count - 1} producerId: {producer_id} producerEpoch: {epoch} "
        f"partitionLeaderEpoch: 1 isTransactional: {str(transactional).lower()} isControl: false "
        "deleteHorizonMs: OptionalLong.empty position: 134556 CreateTime: 1795531193010 size: 270 magic: 2 "
        "compresscodec: none crc: 4192943357 isvalid: true\n"
    )


DUMP = (
    "Dumping /data/kafka-1/chaos-idempotent-2/00000000000000000000.log\n"
    "Log starting offset: 0\n"
    + batch(528, 528, 528, 0, 0, transactional=False)
    # librdkafka 2.16.1 repeated a record here while brokers were restarted.
    + batch(529, 531, 0, 0, 1, transactional=False)
    + batch(532, 532, -1, -1, -1, transactional=False)
    + batch(533, 533, 3, 0, 2, transactional=True)
)


def entry(offset: int, sequence: int, partition: int = 2) -> Event:
    return Event(0.0, partition, Record(7, sequence), offset)


def test_writer_of_each_record_is_read_from_a_log_dump() -> None:
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
def test_only_a_later_epoch_explains_a_repeated_record(
    before: Life | None, after: Life | None, expected: set[Place]
) -> None:
    written = {place: life for place, life in (((2, 1), before), ((2, 2), after)) if life is not None}
    assert sent_again(LOG, written) == expected


def test_earlier_epoch_does_not_explain_a_repeated_record() -> None:
    log = [entry(offset, 1) for offset in range(4)]
    written = {(2, offset): Life(4, epoch) for offset, epoch in enumerate((0, 1, 1, 2))}
    assert sent_again(log, written) == {(2, 1), (2, 3)}


def test_logs_are_dumped_where_a_record_is_there_twice() -> None:
    assert repeated_partitions(LOG) == {2}
    assert repeated_partitions(LOG[3:]) == set()
