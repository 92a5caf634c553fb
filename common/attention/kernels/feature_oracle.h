// Parameters of the kernel that applies a feature map to numbers in double precision, as host and kernel see them.
#pragma once

struct FeatureOracleParams {
  double* values;  // changed in place
  int count;
};
