// Leaves scores as they are. The host puts the measured function in the place of this file (KernelSource::includes).
float score(float s, int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return s; }
