#include "common/launch/work.h"

#include <stdexcept>

namespace attn {

std::string_view name(Bound bound) {
  switch (bound) {
    case Bound::matrix:
      return "matrix";
    case Bound::memory:
      return "memory";
  }
  throw std::logic_error("name(Bound): no such bound");
}

}  // namespace attn
