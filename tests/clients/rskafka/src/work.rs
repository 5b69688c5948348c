//! Records in each partition of a topic, sent and received, until standard input ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use rskafka::client::Client;
use rskafka::client::consumer::{StartOffset, StreamConsumerBuilder};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::record::Record;

use crate::{Outcome, now, tell};

const PARTITIONS: i32 = 12;
const EVERY: Duration = Duration::from_millis(100);
const MAX_WAIT_MS: i32 = 500;

/// Sends and receives: "acknowledged" and "received". A record is sent until it is acknowledged, and what the log has
/// twice is received twice. It ends when all that the log has was received.
pub async fn work(client: Client, topic: &str) -> Outcome<()> {
    let stopping = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&stopping);
    std::thread::spawn(move || {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
        end.store(true, Ordering::Relaxed);
    });
    let mut producing = Vec::new();
    let mut places = Vec::new();
    for partition in 0..PARTITIONS {
        // Each has a connection of its own: a broker answers a connection in order, and a fetch waits for records.
        let to = client
            .partition_client(topic, partition, UnknownTopicHandling::Retry)
            .await?;
        let from = client
            .partition_client(topic, partition, UnknownTopicHandling::Retry)
            .await?;
        let place = Arc::new(AtomicI64::new(0));
        producing.push(tokio::spawn(produce(to, Arc::clone(&stopping))));
        tokio::spawn(consume(from, Arc::clone(&place)));
        places.push(place);
    }
    for (each, place) in producing.into_iter().zip(places) {
        let end = each.await??;
        while place.load(Ordering::Relaxed) < end {
            tokio::time::sleep(EVERY).await;
        }
    }
    Ok(())
}

/// Returns: where the partition ends.
async fn produce(client: PartitionClient, stopping: Arc<AtomicBool>) -> Outcome<i64> {
    let partition = client.partition();
    let mut number = 0;
    while !stopping.load(Ordering::Relaxed) {
        let value = format!("{partition}-{number}");
        let record = Record {
            key: None,
            value: Some(value.clone().into_bytes()),
            headers: BTreeMap::new(),
            timestamp: now(),
        };
        match client.produce(vec![record], Compression::NoCompression).await {
            Ok(_) => tell("acknowledged", value),
            Err(error) => tell("failed", format!("produce: {error}")),
        }
        number += 1;
        tokio::time::sleep(EVERY).await;
    }
    Ok(client.get_offset(OffsetAt::Latest).await?)
}

async fn consume(client: PartitionClient, place: Arc<AtomicI64>) {
    let mut stream = StreamConsumerBuilder::new(Arc::new(client), StartOffset::At(0))
        .with_max_wait_ms(MAX_WAIT_MS)
        .build();
    while let Some(outcome) = stream.next().await {
        match outcome {
            Ok((found, _)) => {
                let next = place.swap(found.offset + 1, Ordering::Relaxed);
                if found.offset != next {
                    tell("skipped", format!("{next} to {}", found.offset));
                }
                let value = found.record.value.unwrap_or_default();
                tell("received", String::from_utf8_lossy(&value));
            }
            Err(error) => tell("failed", format!("consume: {error}")),
        }
    }
}
