"""Replays of streams: records of a range sent to topics, to an action of a bridge, or into another stream, as jobs."""
