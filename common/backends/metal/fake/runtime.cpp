#include "common/backends/metal/fake/runtime.h"

#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>

#include <Foundation/Foundation.hpp>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace attn::fake {

namespace {

/// Texts that are equal get one address, so that addresses can be compared.
const char* interned(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  return known.insert(text).first->c_str();
}

struct Tables {
  std::mutex mutex;
  std::map<std::pair<const char*, const char*>, IMP> methods;  // by class and selector
  std::unordered_map<const Object*, const char*> living;
  std::map<const char*, uint64_t> messages;
};
Tables& tables() {
  static Tables all;
  return all;
}

thread_local std::string complaint;
[[noreturn]] void complain() { throw Misuse(complaint); }

struct Pool : Object {
  Pool() : Object("NSAutoreleasePool") {}
  std::vector<Object*> all;
};
thread_local std::vector<Pool*> pools;

void drain(Pool* pool) {
  if (pools.empty() || pools.back() != pool) throw Misuse("an autorelease pool ends that is not the thread's last one");
  for (size_t i = 0; i < pool->all.size(); ++i) release(pool->all[i]);
  pools.pop_back();
  release(pool);
}

struct ClassObject : Object {
  explicit ClassObject(const std::string& name) : Object(interned("+" + name)) {}
};
ClassObject* class_of(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, ClassObject*> known;
  const std::lock_guard lock(mutex);
  ClassObject*& found = known[name];
  if (!found) found = new ClassObject(name);
  return found;
}

bool is_utf8(const char* text) {
  for (const auto* byte = reinterpret_cast<const unsigned char*>(text); *byte;) {
    const int more = *byte < 0x80 ? 0 : *byte >= 0xc2 && *byte < 0xe0 ? 1 : *byte >= 0xe0 && *byte < 0xf0 ? 2 : 3;
    if (*byte > 0xf4 || (more == 3 && *byte < 0xf0)) return false;
    ++byte;
    for (int i = 0; i < more; ++i) {
      if ((*byte++ & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

struct ProcessInfo : Object {
  ProcessInfo() : Object("NSProcessInfo") {}
};

}  // namespace

System& system() {
  static System one;
  return one;
}

std::map<std::string, long> objects() {
  const std::lock_guard lock(tables().mutex);
  std::map<std::string, long> count;
  for (const auto& [object, name] : tables().living) {
    if (*name != '+') ++count[name];
  }
  return count;
}

std::map<std::string, uint64_t> messages() {
  const std::lock_guard lock(tables().mutex);
  std::map<std::string, uint64_t> count;
  for (const auto& [selector, number] : tables().messages) count[selector] = number;
  return count;
}

Object::Object(const char* name) : class_name(interned(name)) {
  const std::lock_guard lock(tables().mutex);
  tables().living.emplace(this, class_name);
}
Object::~Object() {
  const std::lock_guard lock(tables().mutex);
  tables().living.erase(this);
}

void retain(Object* object) {
  if (object) ++object->references;
}
void release(Object* object) {
  if (object && --object->references == 0) delete object;
}
Object* autoreleased(Object* object) {
  if (pools.empty()) throw Misuse(fmt::format("an object of class {} needs an autorelease pool", object->class_name));
  pools.back()->all.push_back(object);
  return object;
}
bool has_pool() { return !pools.empty(); }

void add(const char* class_name, const char* selector, IMP function) {
  tables().methods[{interned(class_name), interned(selector)}] = function;
}

void set_error(Object** error, long code, const std::string& text) {
  if (error) *error = autoreleased(new Error(code, text));
}

bool fails(SEL selector, Object** error) {
  const std::string name = sel_getName(selector);
  if (!system().fails.contains(name)) return false;
  set_error(error, 1, name + " fails");
  return true;
}

namespace {

void add_foundation() {
  method("+NSAutoreleasePool", "alloc", [](Object*, SEL) -> Object* { return new Pool; });
  method("NSAutoreleasePool", "init", [](Pool* self, SEL) -> Object* {
    pools.push_back(self);
    return self;
  });
  method("NSAutoreleasePool", "drain", [](Pool* self, SEL) { drain(self); });
  method("+NSString", "stringWithCString:encoding:", [](Object*, SEL, const char* text, NS::UInteger) -> Object* {
    return is_utf8(text) ? autoreleased(new String(text)) : nullptr;
  });
  method("NSString", "UTF8String", [](String* self, SEL) { return self->text.c_str(); });
  method("NSArray", "count", [](Array* self, SEL) -> NS::UInteger { return self->all.size(); });
  method("NSArray",
         "objectAtIndex:", [](Array* self, SEL, NS::UInteger index) -> Object* { return self->all.at(index).get(); });
  method("+NSArray", "array", [](Object*, SEL) -> Object* { return autoreleased(new Array); });
  method("+NSArray", "arrayWithObject:", [](Object*, SEL, Object* object) -> Object* {
    auto* const array = new Array;
    array->all.emplace_back(object);
    return autoreleased(array);
  });
  method("+NSArray",
         "arrayWithObjects:count:", [](Object*, SEL, Object* const* objects, NS::UInteger count) -> Object* {
           auto* const array = new Array;
           for (NS::UInteger i = 0; i < count; ++i) array->all.emplace_back(objects[i]);
           return autoreleased(array);
         });
  method("+NSURL", "fileURLWithPath:", [](Object*, SEL, String* path) -> Object* {
    if (!path) throw Misuse("a URL of no path");
    return autoreleased(new Url(path->text));
  });
  method("NSError", "domain", [](Error* self, SEL) -> Object* { return autoreleased(new String(self->domain)); });
  method("NSError", "code", [](Error* self, SEL) -> NS::Integer { return self->code; });
  method("NSError", "localizedDescription",
         [](Error* self, SEL) -> Object* { return autoreleased(new String(self->text)); });
  method("+NSProcessInfo", "processInfo", [](Object*, SEL) -> Object* { return autoreleased(new ProcessInfo); });
  method("NSProcessInfo",
         "isOperatingSystemAtLeastVersion:", [](Object*, SEL, NS::OperatingSystemVersion version) -> bool {
           return system().macos >= version.majorVersion;
         });
}

IMP method_of(Object* object, SEL selector) {
  static const bool added = (add_foundation(), true);
  (void)added;
  const auto* const name = reinterpret_cast<const char*>(selector);
  const auto refuse = [](std::string text) {
    complaint = std::move(text);
    return reinterpret_cast<IMP>(&complain);
  };
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  ++all.messages[name];
  const auto living = all.living.find(object);
  if (living == all.living.end()) return refuse(fmt::format("{} is sent to an object that was released", name));
  const auto found = all.methods.find({living->second, name});
  if (found != all.methods.end()) return found->second;
  const std::string text = name;
  if (text == "init") return reinterpret_cast<IMP>(+[](Object* self, SEL) { return self; });
  if (text == "release") return reinterpret_cast<IMP>(+[](Object* self, SEL) { release(self); });
  if (text == "retain") {
    return reinterpret_cast<IMP>(+[](Object* self, SEL) {
      retain(self);
      return self;
    });
  }
  return refuse(fmt::format("objects of class {} know no message {}", living->second, name));
}

}  // namespace
}  // namespace attn::fake

// ---- what metal-cpp and the device link with

extern "C" {

SEL sel_registerName(const char* name) { return reinterpret_cast<SEL>(attn::fake::interned(name)); }
const char* sel_getName(SEL selector) { return reinterpret_cast<const char*>(selector); }
Class objc_lookUpClass(const char* name) { return reinterpret_cast<Class>(attn::fake::class_of(name)); }
Protocol* objc_getProtocol(const char* name) { return reinterpret_cast<Protocol*>(attn::fake::class_of(name)); }
Class object_getClass(id) { return nullptr; }
void* object_getIndexedIvars(id) { return nullptr; }
objc_method_description protocol_getMethodDescription(Protocol*, SEL, BOOL, BOOL) { return {}; }

// Returns the function for a message; a message to nil returns 0.
__attribute__((visibility("hidden"))) IMP attn_fake_method(void* object, SEL selector) {
  if (!object) return reinterpret_cast<IMP>(+[]() -> uint64_t { return 0; });
  return attn::fake::method_of(static_cast<attn::fake::Object*>(object), selector);
}

// Sending a message finds the method and jumps to it, with all arguments as they are. objc_msgSend_stret() is for
// results that the caller has the memory of; only x86-64 has it.
#if defined(__x86_64__)
#define ATTN_SEND(name, object, selector)                                                                \
  asm(".text\n.globl " name "\n.p2align 4\n" name                                                        \
      ":\n"                                                                                              \
      "subq $200, %rsp\n"                                                                                \
      "movq %rdi, (%rsp)\nmovq %rsi, 8(%rsp)\nmovq %rdx, 16(%rsp)\nmovq %rcx, 24(%rsp)\n"                \
      "movq %r8, 32(%rsp)\nmovq %r9, 40(%rsp)\n"                                                         \
      "movups %xmm0, 48(%rsp)\nmovups %xmm1, 64(%rsp)\nmovups %xmm2, 80(%rsp)\nmovups %xmm3, 96(%rsp)\n" \
      "movups %xmm4, 112(%rsp)\nmovups %xmm5, 128(%rsp)\nmovups %xmm6, 144(%rsp)\n"                      \
      "movq " object ", %rdi\nmovq " selector                                                            \
      ", %rsi\n"                                                                                         \
      "callq attn_fake_method\n"                                                                         \
      "movq %rax, %r11\n"                                                                                \
      "movq (%rsp), %rdi\nmovq 8(%rsp), %rsi\nmovq 16(%rsp), %rdx\nmovq 24(%rsp), %rcx\n"                \
      "movq 32(%rsp), %r8\nmovq 40(%rsp), %r9\n"                                                         \
      "movups 48(%rsp), %xmm0\nmovups 64(%rsp), %xmm1\nmovups 80(%rsp), %xmm2\nmovups 96(%rsp), %xmm3\n" \
      "movups 112(%rsp), %xmm4\nmovups 128(%rsp), %xmm5\nmovups 144(%rsp), %xmm6\n"                      \
      "addq $200, %rsp\n"                                                                                \
      "jmpq *%r11\n")
ATTN_SEND("objc_msgSend", "(%rsp)", "8(%rsp)");
ATTN_SEND("objc_msgSend_fpret", "(%rsp)", "8(%rsp)");
ATTN_SEND("objc_msgSend_stret", "8(%rsp)", "16(%rsp)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl objc_msgSend
.p2align 4
objc_msgSend:
  sub sp, sp, #224
  stp x0, x1, [sp]
  stp x2, x3, [sp, #16]
  stp x4, x5, [sp, #32]
  stp x6, x7, [sp, #48]
  stp x8, x30, [sp, #64]
  stp q0, q1, [sp, #80]
  stp q2, q3, [sp, #112]
  stp q4, q5, [sp, #144]
  stp q6, q7, [sp, #176]
  bl attn_fake_method
  mov x16, x0
  ldp x0, x1, [sp]
  ldp x2, x3, [sp, #16]
  ldp x4, x5, [sp, #32]
  ldp x6, x7, [sp, #48]
  ldp x8, x30, [sp, #64]
  ldp q0, q1, [sp, #80]
  ldp q2, q3, [sp, #112]
  ldp q4, q5, [sp, #144]
  ldp q6, q7, [sp, #176]
  add sp, sp, #224
  br x16
)");
#endif

// Blocks, which metal-cpp's headers use in functions that the device does not call.
void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];
void _Block_object_assign(void*, const void*, int) {}
void _Block_object_dispose(const void*, int) {}

// The number of the GPU's cores.
const CFAllocatorRef kCFAllocatorDefault = nullptr;
const mach_port_t kIOMainPortDefault = 0;
CFStringRef __CFStringMakeConstantString(const char* text) { return reinterpret_cast<CFStringRef>(text); }
CFTypeID CFNumberGetTypeID() { return 22; }
CFTypeID CFGetTypeID(CFTypeRef) { return 22; }
unsigned char CFNumberGetValue(CFNumberRef, CFNumberType, void* value) {
  *static_cast<int*>(value) = 10;
  return 1;
}
void CFRelease(CFTypeRef object) { attn::fake::release(static_cast<attn::fake::Object*>(const_cast<void*>(object))); }
CFMutableDictionaryRef IOServiceMatching(const char* name) {
  return reinterpret_cast<CFMutableDictionaryRef>(const_cast<char*>(name));
}
io_service_t IOServiceGetMatchingService(mach_port_t, CFDictionaryRef matching) {
  return std::strcmp(reinterpret_cast<const char*>(matching), "AGXAccelerator") == 0 ? 1 : 0;
}
CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t, CFStringRef key, CFAllocatorRef, IOOptionBits) {
  const bool known = std::strcmp(reinterpret_cast<const char*>(key), "gpu-core-count") == 0;
  return known ? new attn::fake::String("10") : nullptr;
}
kern_return_t IOObjectRelease(io_object_t) { return 0; }
}
