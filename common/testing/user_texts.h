// Texts of users' functions whose names are also names of kernels.
#pragma once

#include <string>
#include <vector>

namespace attn::test {

/// Lines that a user's file may have after its function, and that change nothing. Kernels, hooks and their headers have
/// macros, constants, types, functions or variables of these names.
inline const std::vector<std::string> lines_with_kernels_names = {
    "static const int CAUSAL = 1, HEAD_DIM = 2, BLOCK_C = 3, SIMD = 4, WARP = 5, F32 = 6;",
    "namespace attn { struct Vector {}; } struct Threadgroup {}; template <int N> struct Floats {}; using Ints = "
    "float;",
    "float most(float a, float b) { return a < b ? b : a; } float load(float x) { return x; } float pack(int x) { "
    "return x; }",
    "bool has_bound() { return true; } int bound_of(int q) { return q; } int user_score, user_mask, metal_row;",
    "#define UNROLL",
    "#define VECTORIZE",
    "#define INLINE static",
    "#define BLOCK_C 8",
    "#define BLOCK_C_VALUE 8",
    "#define CAUSAL !",
    "#define V 1",
    "#define i j",
    "#define row 3",
    "#define scale",
    "#define tile (",
    "#define key }",
    "#define head 0",
    "#define begin 1",
    "#define count 0",
    "#define float double",
    "#define int short",
    "#define template",
    "#define USER_SCORE 0",
    "#define SCORE_GRAIN 2",
    "#define SCORE_IS_IDENTITY 1",
    "#define FEATURE_IS_IDENTITY 1",
    "#undef UNROLL",
};

}  // namespace attn::test
