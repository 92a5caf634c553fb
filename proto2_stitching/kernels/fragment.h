// The score function, compiled apart from the kernel. Kernels of the forms `stitched` and `stitched_nolto` call
// score_fragment. Kernels of the form `virtual` call through score_object. For the form `std_function` the kernel
// `publish` tells the host the address of score_fragment.
#define SCORE_IS_FRAGMENT 1
#include "proto2_stitching/kernels/form.h"

extern "C" SCORE_DEVICE SCORE_RESULT score_fragment(SCORE_PARAMETERS) { return score_in_place(SCORE_ARGUMENTS); }

#if SCORE_FORM == FORM_VIRTUAL
namespace {
struct UserScore final : ScoreObject {
  SCORE_RESULT operator()(SCORE_PARAMETERS) const override { return score_in_place(SCORE_ARGUMENTS); }
};
constinit const UserScore user_score;
}  // namespace
extern "C" {
const ScoreObject* score_object = &user_score;
}
#endif

#if SCORE_FORM == FORM_STD_FUNCTION
struct PublishParams {
  void** address;
};
extern "C" void publish(const PublishParams* p, const Threadgroup*) {
  *p->address = reinterpret_cast<void*>(&score_fragment);
}
#endif
