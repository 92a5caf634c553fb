// A constant factor, the cheapest function that changes a score.
float score(float s, int, int, const ScoreContext&) { return 0.75f * s; }
