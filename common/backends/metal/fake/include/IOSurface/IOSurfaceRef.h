// Stands in for Apple's header (fake.h).
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
