// A user's score function. This file leaves scores as they are. UserFunction::add_to() makes the text that replaces
// this file (KernelSource::includes). Kernels include this file within a namespace.
float score(float s, int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return s; }
