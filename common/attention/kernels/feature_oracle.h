// The parameters of the kernel that applies a feature map to numbers in double precision. The host and the kernel
// include this file.
#pragma once

struct FeatureOracleParams {
  double* values;  // changed in place
  int count;
};
