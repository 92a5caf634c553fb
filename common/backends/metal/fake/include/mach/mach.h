// Stands in for Apple's header (fake.h).
#pragma once

typedef unsigned int mach_port_t;
typedef int kern_return_t;
typedef unsigned int task_id_token_t;
