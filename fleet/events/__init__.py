"""What a fleet tells about itself: events, on their way to topics of the cluster in front of which it stands."""
