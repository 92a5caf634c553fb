// The fake's runtime of Objective-C, and the classes of Foundation that the device uses. Only for the fake's own files,
// which are compiled with metal-cpp.
#pragma once

#include <fmt/format.h>
#include <objc/runtime.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/backends/metal/fake/fake.h"

namespace attn::fake {

/// An object. It is deleted when its last reference is released. `owns` are the objects that it has references to.
class Object {
 public:
  explicit Object(const char* class_name);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  const char* const class_name;
  std::atomic<long> references = 1;
};
void retain(Object* object);
void release(Object* object);
/// Puts a reference into the thread's autorelease pool. Throws Misuse without a pool.
Object* autoreleased(Object* object);
/// Whether the thread has an autorelease pool.
bool has_pool();

/// A reference; may be null.
template <typename T>
class Ref {
 public:
  Ref() = default;
  Ref(T* object) : object_(object) { retain(object_); }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { release(object_); }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  T* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

struct String : Object {
  explicit String(std::string content) : Object("NSString"), text(std::move(content)) {}
  const std::string text;
};
struct Array : Object {
  Array() : Object("NSArray") {}
  std::vector<Ref<Object>> all;
};
struct Url : Object {
  explicit Url(std::string file) : Object("NSURL"), path(std::move(file)) {}
  const std::string path;
};
struct Error : Object {
  Error(long number, std::string content, std::string of = "fake")
      : Object("NSError"), code(number), text(std::move(content)), domain(std::move(of)) {}
  const long code;
  const std::string text, domain;
};

/// Adds a method. The name of a class method's class begins with "+". `function` is a lambda without captures: its
/// parameters are the object, the selector, and the arguments of the message.
void add(const char* class_name, const char* selector, IMP function);
template <typename Function>
void method(const char* class_name, const char* selector, Function function) {
  add(class_name, selector, reinterpret_cast<IMP>(+function));
}
/// Adds a class whose objects alloc() makes.
template <typename T>
void allocatable(const char* class_name) {
  static_assert(std::is_default_constructible_v<T>);
  method(("+" + std::string(class_name)).c_str(), "alloc", [](Object*, SEL) -> Object* { return new T; });
}

/// Returns whether system().fails has the message. If so, and if `error` is not null, *error gets an error.
bool fails(SEL selector, Object** error);
void set_error(Object** error, long code, const std::string& text);

}  // namespace attn::fake
