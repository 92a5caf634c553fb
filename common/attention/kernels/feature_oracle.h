// Parameters of the kernel `feature_oracle`, for host and kernel.
#pragma once

struct FeatureOracleParams {
  double* values;  // changed in place
  int count;
};
