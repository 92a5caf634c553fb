// Stands in for Apple's header (fake.h).
#pragma once

#include <CoreFoundation/CoreFoundation.h>
#include <mach/mach.h>

extern "C" {
typedef mach_port_t io_object_t, io_service_t, io_registry_entry_t;
typedef uint32_t IOOptionBits;
extern const mach_port_t kIOMainPortDefault;
CFMutableDictionaryRef IOServiceMatching(const char* name);
io_service_t IOServiceGetMatchingService(mach_port_t port, CFDictionaryRef matching);
CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key, CFAllocatorRef allocator,
                                          IOOptionBits options);
kern_return_t IOObjectRelease(io_object_t object);
}
