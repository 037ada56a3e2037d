/* exif.h - which way up an image is: EXIF's orientation.
 *
 * A block is what stands behind "Exif\0\0" in a JPEG's APP1, in a PNG's eXIf chunk and in a WebP's EXIF chunk: a TIFF
 * file of its own. Writers put "Exif\0\0" into the block, too, once or twice; it is passed over, as in Pillow. Only the
 * first directory is read, and of that one tag.
 * Format: TIFF 6.0, section 2; the tag: Exif 2.32, 4.6.4 (CIPA DC-008). Thread-safe: nothing here has state. */
#ifndef FEEDD_EXIF_H
#define FEEDD_EXIF_H

#include <stddef.h>
#include <stdint.h>

/* @param exif  the block, borrowed for the call; may hold anything, be cut short anywhere, or be NULL when size is 0
 * @return 1 to 8; 1, which is upright, also where the block says nothing or nothing that makes sense */
uint8_t exif_orientation(const uint8_t *exif, size_t size);

#endif
