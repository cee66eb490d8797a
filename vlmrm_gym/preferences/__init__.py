"""Which of two is closer to the goal: pairs of segments, what answers, and the file of answers."""
