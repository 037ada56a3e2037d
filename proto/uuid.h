/* uuid.h - a GPU's UUID as text. Thread-safe. */
#ifndef FEEDD_UUID_H
#define FEEDD_UUID_H

#include "feedd_types.h"

/* As nvidia-smi writes it: a UUID of RFC 9562 behind "GPU-". @param bytes  16, as CUDA has them */
void uuid_text(const char *bytes, char text[FEEDD_UUID_TEXT]);

#endif
