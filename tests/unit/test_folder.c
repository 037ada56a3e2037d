/* test_folder.c - image folders: the samples are those of torchvision's ImageFolder, in its order.
 *
 * Happy path: a case makes a tree, opens it, and compares every sample with a list written out by hand or with the
 * oracle: torchvision's two loops over os.walk(), as their documentation says them, by scandir(3) and stat(2) over
 * whole paths.
 * Threads: one, but for one case that reads on four. */
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <strings.h>
#include <xxhash.h>

#include "tree.h"

#include "error.h"
#include "reader.h"

#define ANY (1ull << 40) /* a memory_max that doesn't matter */

static char root[600]; /* tree/root */

static void setup(void)
{
    tree_setup();
    snprintf(root, sizeof(root), "%s", at("root"));
    put_folder(root);
}

static int try_open(uint64_t memory_max, struct reader **out, struct feedd_error *err)
{
    const struct reader_config config = {.name = root, .ops = &reader_folder, .root = root};
    const struct reader_limits limits = {.memory_max = memory_max};
    return reader_folder.open(&config, &limits, out, err);
}

static struct reader *must_open(void)
{
    static struct reader_config config; /* outlives the reader */
    const struct reader_limits limits = {.memory_max = ANY};
    config = (struct reader_config){.name = root, .ops = &reader_folder, .root = root};
    struct reader *reader = NULL;
    struct feedd_error err = {.message = ""};
    int rc = reader_folder.open(&config, &limits, &reader, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_ptr_eq(reader->ops, &reader_folder);
    ck_assert_uint_eq(reader->height + reader->width + reader->channels, 0);
    ck_assert_int_eq(reader->label_dtype, FEEDD_I64);
    ck_assert(reader->has_labels);
    return reader;
}

/* Refused with the message "<tree>/<place><part>". */
static void refuse(int status, const char *place, const char *part)
{
    struct reader *const untouched = (struct reader *)root;
    struct reader *reader = untouched;
    struct feedd_error err = {.message = ""};
    char due[1000];
    snprintf(due, sizeof(due), "%s/%s%s", tree, place, part);
    int rc = try_open(ANY, &reader, &err);
    ck_assert_str_eq(err.message, due);
    ck_assert_int_eq(rc, status);
    ck_assert_int_eq(err.status, status);
    ck_assert_ptr_eq(reader, untouched);
    ck_assert_int_eq(try_open(ANY, &reader, NULL), status);
}

static int64_t label_of(const struct reader *reader, uint64_t index, int *fd, uint64_t *size)
{
    struct reader_sample sample = {.fd = -77};
    struct feedd_error err = {.message = ""};
    int rc = reader->ops->read(reader, index, &sample, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_ptr_null(sample.pixels);
    ck_assert_uint_eq(sample.offset, 0);
    *fd = sample.fd;
    *size = sample.size;
    return sample.label;
}

/* The samples are these files, below the root, and each holds its own name. */
static void compare(const struct reader *reader, const char *const *paths, uint64_t count)
{
    ck_assert_uint_eq(reader->sample_count, count);
    for (uint64_t i = 0; i < count; i++) {
        char text[2 * PATH_MAX], due[2 * PATH_MAX], class[256];
        int fd;
        uint64_t size;
        reader->ops->path(reader, i, text, sizeof(text));
        snprintf(due, sizeof(due), "%s/%s", root, paths[i]);
        ck_assert_str_eq(text, due);
        snprintf(class, sizeof(class), "%.*s", (int)strcspn(paths[i], "/"), paths[i]);
        const int64_t label = label_of(reader, i, &fd, &size);
        ck_assert_int_lt(label, reader->class_count);
        ck_assert_str_eq(reader->class_names[label], class);
        ck_assert_int_eq(read(fd, text, sizeof(text)), (ssize_t)size);
        text[size] = '\0';
        ck_assert_str_eq(text, strrchr(paths[i], '/') + 1);
        close(fd);
    }
}

/* A file that holds its own name. */
static void put_image(const char *path)
{
    put_file(at("root/%s", path), strrchr(path, '/') + 1);
}

/* ---- the rule, by hand ---- */

START_TEST(order)
{
    static const char *const files[] = {
        "b/1.jpg",
        "a-b/1.jpg",
        "a/z.jpg",
        "a/10.jpg",
        "a/9.jpg",
        "a/B.jpg",
        "a/b.jpg",
        "a/\xc3\xa9.jpg",
        "a/\xf0\x9f\x98\x80.jpg",
        "a/\xef\xbf\xbd.jpg",
        "a/ .jpg",
        "a/sub/deep/deeper/x.jpg",
        "a/sub-2/x.jpg",
        "a/sub/x.jpg",
        "a/sub.d/x.jpg",
        "a/sub/-/x.jpg",
        "a/sub0/x.jpg",
        "Z/1.jpg",
        ".hidden/.x.jpg",
        "\xc3\xa9/1.jpg",
        "a b/1.jpg",
    };
    /* '.' < 'Z' < 'a'; ' ' < '-' < '.' < '/' < '0'; U+FFFD (EF ..) < U+1F600 (F0 ..) */
    static const char *const due[] = {
        ".hidden/.x.jpg",
        "Z/1.jpg",
        "a/ .jpg",
        "a/10.jpg",
        "a/9.jpg",
        "a/B.jpg",
        "a/b.jpg",
        "a/z.jpg",
        "a/\xc3\xa9.jpg",
        "a/\xef\xbf\xbd.jpg",
        "a/\xf0\x9f\x98\x80.jpg",
        "a/sub/x.jpg",
        "a/sub-2/x.jpg",
        "a/sub.d/x.jpg",
        "a/sub/-/x.jpg",
        "a/sub/deep/deeper/x.jpg",
        "a/sub0/x.jpg",
        "a b/1.jpg",
        "a-b/1.jpg",
        "b/1.jpg",
        "\xc3\xa9/1.jpg",
    };
    static const char *const classes[] = {".hidden", "Z", "a", "a b", "a-b", "b", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        put_image(files[i]);
    put_file(at("root/0.jpg"), "no class");
    put_link(at("root/link.jpg"), "0.jpg");
    put_link(at("root/nothing"), "nowhere");
    put_folder(at("root/a/sub/empty/empty"));
    struct reader *reader = must_open();
    ck_assert_uint_eq(reader->class_count, sizeof(classes) / sizeof(classes[0]));
    for (uint32_t c = 0; c < reader->class_count; c++)
        ck_assert_str_eq(reader->class_names[c], classes[c]);
    compare(reader, due, sizeof(due) / sizeof(due[0]));

    struct reader_sample sample = {.fd = -77, .label = 77};
    struct feedd_error err;
    ck_assert_int_eq(reader->ops->read(reader, reader->sample_count, &sample, &err), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(reader->ops->read(reader, UINT64_MAX, &sample, NULL), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(sample.fd, -77);
    ck_assert_int_eq(sample.label, 77);
    char text[20];
    reader->ops->path(reader, 0, text, sizeof(text)); /* cut, and ended all the same */
    ck_assert_uint_eq(strlen(text), sizeof(text) - 1);
    ck_assert_int_eq(strncmp(text, root, sizeof(text) - 1), 0);
    reader->ops->path(reader, UINT64_MAX, text, sizeof(text));
    reader->ops->close(reader);
    reader_folder.close(NULL);
}
END_TEST

START_TEST(image_names)
{
    static const char *const images[] = {"a.jpg", "a.JPG", "a.jPeG", "a.png",      "a.ppm",
                                         "a.bmp", "a.pgm", "a.tif",  "a.tiff",     "a.WEBP",
                                         ".jpg",  "..png", ".x.Tif", "a.txt.jpeg", "ajpg.jpg"};
    static const char *const others[] = {"a.gif", "a.jpgx", "ajpg",   "a.jpg.txt", "a.jp",
                                         "jpg",   "a.jpg~", "a.jpg ", "tiff"};
    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
        put_file(at("root/a/%s", images[i]), "");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        put_file(at("root/a/%s", others[i]), "");
    put_image("a/folder.jpg/b.jpg");
    put_folder(at("root/a/empty.png"));
    struct reader *reader = must_open();
    ck_assert_uint_eq(reader->sample_count, sizeof(images) / sizeof(images[0]) + 1);
    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
        char path[2 * PATH_MAX];
        uint64_t k = 0;
        do
            reader->ops->path(reader, k, path, sizeof(path));
        while (strcmp(strrchr(path, '/') + 1, images[i]) != 0 && ++k < reader->sample_count);
        ck_assert_msg(k < reader->sample_count, "%s", images[i]);
    }
    reader->ops->close(reader);
}
END_TEST

/* What stands in a folder is listed by its name; what it is shows when it is read. */
START_TEST(kinds)
{
    static const struct {
        const char *name;
        int status;
    } due[] = {{"absolute.jpg", 0},
               {"broken.jpg", FEEDD_E_NOT_FOUND},
               {"fifo.jpg", FEEDD_E_CORRUPT},
               {"link.jpg", 0},
               {"outside.jpg", FEEDD_E_ACCESS},
               {"plain.jpg", 0},
               {"self.jpg", FEEDD_E_NOT_FOUND},
               {"zero.jpg", FEEDD_E_ACCESS}};
    put_image("a/plain.jpg");
    put_file(at("secret.jpg"), "secret");
    put_link(at("root/a/link.jpg"), "plain.jpg");
    put_link(at("root/a/absolute.jpg"), at("root/a/plain.jpg"));
    put_link(at("root/a/outside.jpg"), "../../secret.jpg");
    put_link(at("root/a/broken.jpg"), "nowhere");
    put_link(at("root/a/self.jpg"), "self.jpg");
    put_link(at("root/a/zero.jpg"), "/dev/zero");
    ck_assert_int_eq(mkfifo(at("root/a/fifo.jpg"), 0600), 0);
    struct reader *reader = must_open();
    ck_assert_uint_eq(reader->sample_count, sizeof(due) / sizeof(due[0]));
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        char path[2 * PATH_MAX];
        reader->ops->path(reader, i, path, sizeof(path));
        ck_assert_str_eq(strrchr(path, '/') + 1, due[i].name);
        struct reader_sample sample = {.fd = -77};
        struct feedd_error err = {.message = ""};
        ck_assert_int_eq(reader->ops->read(reader, i, &sample, &err), due[i].status);
        ck_assert_int_eq(sample.fd == -77, due[i].status != 0);
        if (due[i].status == 0)
            close(sample.fd);
        else
            ck_assert_ptr_null(strstr(err.message, due[i].name)); /* who reads says the path */
    }
    reader->ops->close(reader);
}
END_TEST

/* ---- the rule, by an oracle ---- */

struct found {
    char *paths[4000]; /* of samples, below the root */
    int labels[4000];
    uint64_t count;
    char *folders[4000]; /* of one class: whole paths */
    int folder_count;
    char *classes[4000];
    int class_count;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *join(const char *folder, const char *name)
{
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    sprintf(path, "%s/%s", folder, name);
    return path;
}

static int is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode); /* os.DirEntry.is_dir() follows links, as os.path.isdir() */
}

/* os.walk(followlinks=True): a folder, and all below it. */
static void walk(struct found *f, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, NULL);
    ck_assert_int_ge(count, 0);
    f->folders[f->folder_count++] = strdup(folder);
    for (int i = 0; i < count; i++) {
        char *path = join(folder, entries[i]->d_name);
        if (strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0 && is_folder(path))
            walk(f, path);
        free(path);
        free(entries[i]);
    }
    free(entries);
}

static int has_extension(const char *name) /* str.lower().endswith(IMG_EXTENSIONS) */
{
    static const char *const ends[] = {"jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot != NULL && i < sizeof(ends) / sizeof(ends[0]); i++)
        if (strcasecmp(dot + 1, ends[i]) == 0)
            return 1;
    return 0;
}

static void list_files(struct found *f, const char *folder, int label)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, NULL), names = 0;
    char **sorted = calloc((size_t)count + 1, sizeof(*sorted));
    for (int i = 0; i < count; i++) {
        char *path = join(folder, entries[i]->d_name);
        if (!is_folder(path))
            sorted[names++] = strdup(entries[i]->d_name);
        free(path);
        free(entries[i]);
    }
    free(entries);
    qsort(sorted, (size_t)names, sizeof(*sorted), by_text); /* sorted(fnames) */
    for (int i = 0; i < names; i++) {
        if (has_extension(sorted[i])) {
            f->labels[f->count] = label;
            f->paths[f->count++] = join(folder, sorted[i]);
        }
        free(sorted[i]);
    }
    free(sorted);
}

/* find_classes() and make_dataset(). */
static struct found *oracle(void)
{
    struct found *f = calloc(1, sizeof(*f));
    struct dirent **entries;
    int count = scandir(root, &entries, NULL, NULL);
    for (int i = 0; i < count; i++) {
        char *path = join(root, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && is_folder(path)) /* no class of these trees begins with a dot */
            f->classes[f->class_count++] = strdup(entries[i]->d_name);
        free(path);
        free(entries[i]);
    }
    free(entries);
    qsort(f->classes, (size_t)f->class_count, sizeof(char *), by_text);
    for (int c = 0; c < f->class_count; c++) {
        char *path = join(root, f->classes[c]);
        f->folder_count = 0;
        walk(f, path);
        qsort(f->folders, (size_t)f->folder_count, sizeof(char *), by_text); /* sorted(os.walk(target_dir)) */
        for (int i = 0; i < f->folder_count; i++) {
            list_files(f, f->folders[i], c);
            free(f->folders[i]);
        }
        free(path);
    }
    return f;
}

static void oracle_free(struct found *f)
{
    for (uint64_t i = 0; i < f->count; i++)
        free(f->paths[i]);
    for (int i = 0; i < f->class_count; i++)
        free(f->classes[i]);
    free(f);
}

static void compare_with_oracle(const struct reader *reader)
{
    struct found *f = oracle();
    ck_assert_uint_eq(reader->sample_count, f->count);
    ck_assert_uint_eq(reader->class_count, f->class_count);
    for (int c = 0; c < f->class_count; c++)
        ck_assert_str_eq(reader->class_names[c], f->classes[c]);
    for (uint64_t i = 0; i < f->count; i++) {
        char text[2 * PATH_MAX];
        int fd;
        uint64_t size;
        struct stat st, due;
        reader->ops->path(reader, i, text, sizeof(text));
        ck_assert_str_eq(text, f->paths[i]);
        ck_assert_int_eq(label_of(reader, i, &fd, &size), f->labels[i]);
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_int_eq(stat(f->paths[i], &due), 0);
        ck_assert(st.st_ino == due.st_ino && st.st_dev == due.st_dev && (uint64_t)st.st_size == size);
        close(fd);
    }
    oracle_free(f);
}

/* A name that sorts badly: of characters about '/', and others. */
static void random_name(uint64_t *state, char *name, const char *end)
{
    static const char *const parts[] = {"a",  "b",   "-", " ", "!", "0", ".", "A", "~", "_", "\xc3\xa9", "\xe2\x82\xac",
                                        "aa", "\x01"};
    size_t used = (size_t)sprintf(name, "%s", parts[random_next(state) % 2]); /* no dot at the beginning */
    for (uint32_t n = random_next(state) % 3; n > 0; n--)
        used += (size_t)sprintf(name + used, "%s", parts[random_next(state) % (sizeof(parts) / sizeof(parts[0]))]);
    strcpy(name + used, end);
}

/* One of these folders that no other one is in, or NULL. */
static const char *random_leaf(char *const *folders, int count, uint64_t *state)
{
    const char *leaf = folders[random_next(state) % (uint32_t)count];
    struct dirent **entries;
    int n = scandir(leaf, &entries, NULL, NULL), found = 0;
    for (int i = 0; i < n; i++) {
        found += entries[i]->d_type == DT_DIR || entries[i]->d_type == DT_LNK;
        free(entries[i]);
    }
    free(entries);
    return found == 2 ? leaf : NULL; /* "." and ".." */
}

START_TEST(random_trees)
{
    static const char *const ends[] = {".jpg", ".JPEG", ".txt", ".webp", "", ".Png"};
    uint64_t state = 11;
    for (int t = 0; t < 40; t++) {
        char *folders[80], name[64];
        int folder_count = 0;
        for (uint32_t classes = 1 + random_next(&state) % 6; classes > 0; classes--) {
            random_name(&state, name, "");
            folders[folder_count++] = join(root, name);
            put_file(at("root/%s/one.jpg", name), "one");
        }
        for (uint32_t n = random_next(&state) % 30; n > 0; n--) {
            random_name(&state, name, "");
            folders[folder_count] = join(folders[random_next(&state) % (uint32_t)folder_count], name);
            put_folder(folders[folder_count++]);
        }
        for (uint32_t n = random_next(&state) % 80; n > 0; n--) {
            random_name(&state, name, ends[random_next(&state) % 6]);
            char *path = join(folders[random_next(&state) % (uint32_t)folder_count], name);
            if (access(path, F_OK) != 0)
                put_bytes(path, path, random_next(&state) % 10);
            free(path);
        }
        /* Links to folders without others in them: no circles, and no sizes that explode. */
        for (uint32_t n = t % 2 ? random_next(&state) % 6 : 0; n > 0; n--) {
            random_name(&state, name, "");
            const char *target = random_leaf(folders, folder_count, &state);
            char *path = join(folders[0], name);
            if (target != NULL && target != folders[0] && access(path, F_OK) != 0)
                put_link(path, target);
            free(path);
        }
        struct reader *reader = must_open();
        compare_with_oracle(reader);
        reader->ops->close(reader);
        for (int i = 0; i < folder_count; i++)
            free(folders[i]);
        tree_remove(root);
        put_folder(root);
    }
}
END_TEST

/* ---- links ---- */

START_TEST(folder_links)
{
    static const char *const due[] = {
        "a/1.jpg",       "a/absolute/2.jpg", "a/absolute/d/3.jpg", "a/relative/2.jpg", "a/relative/d/3.jpg",
        "a/twice/3.jpg", "b/2.jpg",          "b/d/3.jpg",          "c/2.jpg",          "c/d/3.jpg",
    };
    put_image("a/1.jpg");
    put_image("b/2.jpg");
    put_image("b/d/3.jpg");
    put_link(at("root/a/relative"), "../b");
    put_link(at("root/a/absolute"), at("root/b"));
    put_link(at("root/a/twice"), "relative/d"); /* through another link */
    put_link(at("root/c"), "b");                /* a class of its own */
    struct reader *reader = must_open();
    ck_assert_uint_eq(reader->class_count, 3);
    compare(reader, due, sizeof(due) / sizeof(due[0]));
    reader->ops->close(reader);
}
END_TEST

START_TEST(link_errors)
{
    static const char leads_out[] = ": a link that leads out of the dataset's folder; allowed: links within it";
    static const char circle[] = ": a link to a folder that it is in itself, so that the list would never end";
    static const struct {
        const char *path, *target; /* target "/x": below the tree */
        const char *place;         /* what the message names */
        int status;
        const char *message;
    } cases[] = {
        {"root/a/out", "../..", "root/a/out", FEEDD_E_ACCESS, leads_out},
        {"root/a/b/out", "/outside", "root/a/b/out", FEEDD_E_ACCESS, leads_out},
        {"root/out", "../outside", "root/out", FEEDD_E_ACCESS, leads_out},
        {"root/out", "/root-2", "root/out", FEEDD_E_ACCESS, leads_out},
        {"root/a/self", ".", "root/a/self", FEEDD_E_CORRUPT, circle},
        {"root/a/b/up", "..", "root/a/b/up", FEEDD_E_CORRUPT, circle},
        {"root/a/b/up", "../..", "root/a/b/up", FEEDD_E_CORRUPT, circle},
        {"root/a/b/up", "/root", "root/a/b/up", FEEDD_E_CORRUPT, circle},
        {"root/a/b/up", "/root/a", "root/a/b/up", FEEDD_E_CORRUPT, circle},
        {"root/all", ".", "root/all", FEEDD_E_CORRUPT, circle},
        {"root/a/b/to-c", "../../c", "root/a/b/to-c/to-a", FEEDD_E_CORRUPT, circle}, /* in two steps: c/to-a is there */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        put_image("a/1.jpg");
        put_image("a/b/1.jpg");
        put_file(at("outside/1.jpg"), "x");
        put_file(at("root-2/1.jpg"), "x");
        if (strstr(cases[i].target, "c") != NULL) {
            put_image("c/1.jpg");
            put_link(at("root/c/to-a"), "../a");
        }
        put_link(at("%s", cases[i].path), cases[i].target[0] == '/' ? at("%s", cases[i].target + 1) : cases[i].target);
        refuse(cases[i].status, cases[i].place, cases[i].message);
        tree_remove(root);
        put_folder(root);
    }
}
END_TEST

/* ---- errors ---- */

START_TEST(empty)
{
    static const char no_images[] =
        ": a class folder without images; allowed: at least one .jpg, .jpeg, .png, .ppm, .bmp, "
        ".pgm, .tif, .tiff or .webp file";
    static const char no_classes[] = ": no folders in it; allowed: a folder for each class, with its images";
    refuse(FEEDD_E_CORRUPT, "root", no_classes);
    put_file(at("root/1.jpg"), "x");
    refuse(FEEDD_E_CORRUPT, "root", no_classes);
    put_image("b/1.jpg");
    put_folder(at("root/c"));
    put_folder(at("root/a/d"));
    put_file(at("root/a/d/notes.txt"), "x");
    refuse(FEEDD_E_CORRUPT, "root/a", no_images);
    put_image("a/d/1.jpg");
    refuse(FEEDD_E_CORRUPT, "root/c", no_images);
    put_image("c/d/e/f/1.jpg");
    struct reader *reader = must_open();
    ck_assert_uint_eq(reader->sample_count, 3);
    reader->ops->close(reader);

    tree_remove(root);
    refuse(FEEDD_E_NOT_FOUND, "root", ": can't be opened: No such file or directory");
    put_file(root, "x");
    refuse(FEEDD_E_NOT_FOUND, "root", ": can't be opened: Not a directory");
    unlink(root);
    ck_assert_int_eq(mkfifo(root, 0600), 0);
    refuse(FEEDD_E_NOT_FOUND, "root", ": can't be opened: Not a directory");
}
END_TEST

/* torchvision would leave such a folder out, and train on what is left. */
START_TEST(unreadable)
{
    put_image("a/1.jpg");
    put_image("b/c/1.jpg");
    put_image("b/1.jpg");
    const uid_t user = geteuid();
    for (int i = 0; i < 3; i++) {
        const char *const places[] = {"root", "root/b", "root/b/c"};
        ck_assert_int_eq(chmod(at("%s", places[i]), 0311), 0);
        if (user == 0 && seteuid(65534) != 0) {
            printf("unreadable: skipped: root reads everything, and can't become nobody\n");
        } else {
            refuse(FEEDD_E_ACCESS, places[i], ": can't be opened: Permission denied");
            ck_assert_int_eq(seteuid(user), 0);
        }
        ck_assert_int_eq(chmod(at("%s", places[i]), 0755), 0);
    }
}
END_TEST

/* Deeper than a path can be: made step by step, as such trees are. */
START_TEST(deep)
{
    char name[251], back[PATH_MAX];
    memset(name, 'd', 250);
    name[250] = '\0';
    put_image("a/1.jpg");
    ck_assert_ptr_nonnull(getcwd(back, sizeof(back)));
    ck_assert_int_eq(chdir(at("root/a")), 0);
    for (int i = 0; i < 17; i++) {
        ck_assert_int_eq(mkdir(name, 0755), 0);
        ck_assert_int_eq(chdir(name), 0);
        int fd = open("1.jpg", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        ck_assert_int_ge(fd, 0);
        close(fd);
    }
    struct reader *reader = (struct reader *)root;
    struct feedd_error err = {.message = ""};
    ck_assert_int_eq(try_open(ANY, &reader, &err), FEEDD_E_NOT_FOUND);
    ck_assert_int_eq(strncmp(err.message, "...ddd", 6), 0);
    ck_assert_ptr_nonnull(strstr(err.message, ": can't be listed: File name too long"));
    for (int i = 0; i < 17; i++) {
        ck_assert_int_eq(unlink("1.jpg"), 0);
        ck_assert_int_eq(chdir(".."), 0);
        ck_assert_int_eq(rmdir(name), 0);
        if (i == 2) { /* what is left has paths of 3.5 KiB, which fit */
            int rc = try_open(ANY, &reader, &err);
            ck_assert_msg(rc == 0, "%s", err.message);
            ck_assert_uint_eq(reader->sample_count, 15);
            reader->ops->close(reader);
        }
    }
    ck_assert_int_eq(chdir(back), 0);
}
END_TEST

/* ---- memory, fingerprint, threads ---- */

/* At most 64 bytes a sample and the names, with a folder's path once; and never more than the limit. */
START_TEST(memory)
{
    uint64_t names = 1, samples = 0, folders = 1; /* the root's "" */
    for (int c = 0; c < 5; c++)
        for (int d = 0; d < 4; d++) {
            char path[100];
            int used = d == 0 ? sprintf(path, "class%d", c) : sprintf(path, "class%d/folder-%d", c, d);
            names += (uint64_t)used + 1;
            folders++;
            for (int i = 0; i < 1 + c * 30; i++) {
                names += (uint64_t)sprintf(path + used, "/image-%d.jpeg", i * 777);
                samples++;
                put_file(at("root/%s", path), "");
            }
        }
    struct reader *reader = must_open();
    const uint64_t bytes = reader->memory_bytes;
    ck_assert_uint_eq(reader->sample_count, samples);
    ck_assert_uint_eq(bytes, samples * 24 + folders * 32 + names + 5 * 8);
    ck_assert_uint_le(bytes, samples * 64 + names);
    reader->ops->close(reader);

    uint64_t least = 0;
    for (uint64_t limit = 0; limit < 2 * bytes; limit += bytes / 40 + 1) {
        struct feedd_error err = {.message = ""};
        int rc = try_open(limit, &reader, &err);
        if (rc == 0) {
            least = least == 0 ? limit : least;
            ck_assert_uint_le(reader->memory_bytes, limit);
            ck_assert_uint_eq(reader->memory_bytes, bytes);
            reader->ops->close(reader);
        } else {
            char due[1000];
            snprintf(due, sizeof(due),
                     "%s: the list of its files takes more memory than is allowed: %llu bytes "
                     "(daemon.dataset_memory_max)",
                     root, (unsigned long long)limit);
            ck_assert_int_eq(rc, FEEDD_E_LIMIT);
            ck_assert_str_eq(err.message, due);
            ck_assert_uint_eq(least, 0);
        }
    }
    ck_assert_uint_ge(least, bytes);
    ck_assert_uint_lt(least, bytes + bytes / 4); /* little more than it takes in the end */
}
END_TEST

static uint64_t fingerprint(void)
{
    struct reader *reader = must_open();
    const uint64_t value = reader->fingerprint;
    reader->ops->close(reader);
    return value;
}

START_TEST(fingerprints)
{
    put_file(at("root/b/1.jpg"), "12345");
    put_file(at("root/a/c/2.png"), "");
    put_file(at("root/a/10.jpg"), "123456789012345678901234567890");
    const uint64_t plain = fingerprint();

    /* XXH3 of: path, 0, size, in order; then the count; numbers as 8 bytes, little-endian. */
    static const char due[] = "a/10.jpg\0"
                              "\x1e\0\0\0\0\0\0\0"
                              "a/c/2.png\0"
                              "\0\0\0\0\0\0\0\0"
                              "b/1.jpg\0"
                              "\5\0\0\0\0\0\0\0"
                              "\3\0\0\0\0\0\0\0";
    ck_assert_uint_eq(plain, XXH3_64bits(due, sizeof(due) - 1));

    put_file(at("root/b/1.jpg"), "54321"); /* as many bytes */
    ck_assert_uint_eq(fingerprint(), plain);
    put_file(at("root/b/1.jpg"), "1234");
    ck_assert_uint_ne(fingerprint(), plain);
    put_file(at("root/b/1.jpg"), "12345");
    put_file(at("root/b/notes.txt"), "1"); /* not a sample */
    ck_assert_uint_eq(fingerprint(), plain);
    ck_assert_int_eq(rename(at("root/b/1.jpg"), at("root/b/1.png")), 0);
    ck_assert_uint_ne(fingerprint(), plain);
    ck_assert_int_eq(rename(at("root/b/1.png"), at("root/b/1.jpg")), 0);
    ck_assert_int_eq(rename(at("root/b"), at("root/d")), 0);
    ck_assert_uint_ne(fingerprint(), plain);
    ck_assert_int_eq(rename(at("root/d"), at("root/b")), 0);
    put_file(at("root/b/2.jpg"), "");
    ck_assert_uint_ne(fingerprint(), plain);
    ck_assert_int_eq(unlink(at("root/b/2.jpg")), 0);
    ck_assert_uint_eq(fingerprint(), plain);

    ck_assert_int_eq(rename(root, at("elsewhere")), 0); /* where the root is doesn't matter */
    strcpy(root, at("elsewhere"));
    ck_assert_uint_eq(fingerprint(), plain);
}
END_TEST

static void *read_all(void *argument)
{
    const struct reader *reader = argument;
    for (int round = 0; round < 20; round++)
        for (uint64_t i = 0; i < reader->sample_count; i++) {
            struct reader_sample sample;
            char path[2 * PATH_MAX], text[64] = "";
            reader->ops->path(reader, i, path, sizeof(path));
            if (reader->ops->read(reader, i, &sample, NULL) != 0)
                return argument;
            ssize_t got = read(sample.fd, text, sizeof(text) - 1);
            close(sample.fd);
            if (got != (ssize_t)sample.size || strcmp(text, strrchr(path, '/') + 1) != 0)
                return argument;
        }
    return NULL;
}

START_TEST(threads)
{
    pthread_t thread[4];
    for (int i = 0; i < 100; i++) {
        char path[64];
        sprintf(path, "%d/%d.jpg", i % 3, i);
        put_image(path);
    }
    struct reader *reader = must_open();
    for (int t = 0; t < 4; t++)
        ck_assert_int_eq(pthread_create(&thread[t], NULL, read_all, reader), 0);
    for (int t = 0; t < 4; t++) {
        void *bad;
        ck_assert_int_eq(pthread_join(thread[t], &bad), 0);
        ck_assert_ptr_null(bad);
    }
    reader->ops->close(reader);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("folder");
    TCase *tcase = tcase_create("folder");
    tcase_add_checked_fixture(tcase, setup, tree_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, order);
    tcase_add_test(tcase, image_names);
    tcase_add_test(tcase, kinds);
    tcase_add_test(tcase, random_trees);
    tcase_add_test(tcase, folder_links);
    tcase_add_test(tcase, link_errors);
    tcase_add_test(tcase, empty);
    tcase_add_test(tcase, unreadable);
    tcase_add_test(tcase, deep);
    tcase_add_test(tcase, memory);
    tcase_add_test(tcase, fingerprints);
    tcase_add_test(tcase, threads);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
