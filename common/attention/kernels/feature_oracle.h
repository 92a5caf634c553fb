// Parameters of the kernel that applies a feature map to numbers in double precision, for host and kernel.
#pragma once

struct FeatureOracleParams {
  double* values;  // changed in place
  int count;
};
