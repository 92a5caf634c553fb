// Stands in for Apple's header (fake.h).
#pragma once

#define __MAC_OS_X_VERSION_MIN_REQUIRED 140000
#define TARGET_OS_MAC 1
#define TARGET_OS_OSX 1
#define TARGET_OS_IPHONE 0
#define TARGET_OS_IOS 0
#define TARGET_OS_TV 0
#define TARGET_OS_SIMULATOR 0
