/* uuid.c - see uuid.h. */
#include "uuid.h"

#include <stdio.h>

void uuid_text(const char *bytes, char text[FEEDD_UUID_TEXT])
{
    int at = snprintf(text, FEEDD_UUID_TEXT, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, FEEDD_UUID_TEXT - (size_t)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)bytes[i]);
}
