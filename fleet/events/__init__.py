"""What a fleet tells about itself: events, on their way to topics of the cluster that it stands before."""
