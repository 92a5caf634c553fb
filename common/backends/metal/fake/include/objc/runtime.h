// Stands in for Apple's header (fake.h).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
typedef struct objc_class* Class;
struct objc_object {
  Class isa;
};
typedef struct objc_object* id;
typedef struct objc_object Protocol;
typedef const struct objc_selector* SEL;
typedef bool BOOL;  // as on Apple's processors
typedef void (*IMP)(void);
struct objc_method_description {
  SEL name;
  char* types;
};
Class objc_lookUpClass(const char* name);
Protocol* objc_getProtocol(const char* name);
SEL sel_registerName(const char* name);
const char* sel_getName(SEL selector);
Class object_getClass(id object);
void* object_getIndexedIvars(id object);
struct objc_method_description protocol_getMethodDescription(Protocol*, SEL, BOOL, BOOL);
}
