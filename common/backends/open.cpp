// The static functions of Device, which look a device up in backends().
#include <fmt/format.h>

#include <algorithm>

#include "common/backends/backends.h"
#include "common/base/error.h"

namespace attn {
namespace {

const Backend* find_backend(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &Backend::name);
  return found == backends().end() ? nullptr : &*found;
}

/// Returns the backend of a spec. Throws BadInput for an unknown backend and for options of a backend that takes no
/// options, and DeviceMissing if this build lacks the device.
const Backend& backend_of(std::string_view spec) {
  const Backend* const backend = find_backend(spec.substr(0, spec.find(':')));
  if (!backend) throw BadInput(fmt::format("unknown device '{}'; known: {}", spec, Device::known_specs()));
  if (!backend->open) throw DeviceMissing(fmt::format("{}: this build has {}", backend->name, backend->missing));
  if (backend->options.empty() && spec != backend->name) {
    throw BadInput(fmt::format("device '{}' is not allowed; {} takes no options", spec, backend->name));
  }
  return *backend;
}

}  // namespace

bool Device::is_built(std::string_view backend) {
  const Backend* const found = find_backend(backend);
  return found && found->open;
}

std::string Device::known_specs() {
  std::string specs;
  for (const Backend& backend : backends()) {
    const auto add = [&](const std::string& spec) { specs += (specs.empty() ? "" : ", ") + spec; };
    if (!backend.needs_options) add(std::string(backend.name));
    if (!backend.options.empty()) add(fmt::format("{}:{}", backend.name, backend.options));
  }
  return specs;
}

std::unique_ptr<Device> Device::open(std::string_view spec) { return backend_of(spec).open(spec); }

std::unique_ptr<Device> Device::open_for_caller(std::string_view spec, const Caller& caller) {
  const Backend& backend = backend_of(spec);
  return backend.open_for_caller ? backend.open_for_caller(spec, caller) : backend.open(spec);
}

}  // namespace attn
