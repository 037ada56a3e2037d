/* private.c - see private.h.
 *
 * Happy path: a configuration is written -> fork, exec -> feedd prints its socket -> SIGTERM -> wait -> the folder is
 * removed. The daemon leads a process group of its own: Ctrl-C is for feedctl, which then ends it.
 * What can fail: no program, or it can't start: the last line that it wrote to its log is the error. */
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

#define LINGER_S  20 /* without a client; longer than any pause of a benchmark */
#define STOP_MS   10000
#define LOG_BYTES 2048 /* of the log's end that are searched for its last line */
#define CLIENTS   1024 /* at a time: more than `share` forks */

/* ---- what to serve ---- */

/* @return the absolute path, owned by the caller, or NULL */
static char *existing_path(const char *path, struct feedd_error *err)
{
    char *real = realpath(path, NULL);
    if (real == NULL)
        error_set(
            err, FEEDD_E_NOT_FOUND,
            "%s: %s; DATASET is a folder of class folders, a list, or idx:IMAGES[,LABELS]; the name of a daemon's "
            "dataset needs --socket",
            path, strerror(errno));
    return real;
}

static int set_path(json_t *dataset, const char *key, const char *path, struct feedd_error *err)
{
    char *real = existing_path(path, err);
    if (real == NULL)
        return FEEDD_E_NOT_FOUND;
    int status = 0;
    if (json_object_set_new(dataset, key, json_string(real)) != 0)
        status = error_set(err, FEEDD_E_ARGUMENT, "%s: the path is not UTF-8", path);
    free(real);
    return status;
}

/* "IMAGES,LABELS" or "IMAGES". */
static int set_idx(json_t *dataset, const char *files, struct feedd_error *err)
{
    char images[PATH_MAX];
    const char *comma = strchr(files, ',');
    const size_t length = comma != NULL ? (size_t)(comma - files) : strlen(files);
    if (length >= sizeof(images))
        return error_set(err, FEEDD_E_ARGUMENT, "idx:%s: the path is too long", files);
    memcpy(images, files, length);
    images[length] = '\0';
    json_object_set_new(dataset, "reader", json_string("idx"));
    int status = set_path(dataset, "images", images, err);
    if (status == 0 && comma != NULL)
        status = set_path(dataset, "labels", comma + 1, err);
    return status;
}

static int describe_dataset(json_t *dataset, const char *text, struct feedd_error *err)
{
    struct stat st;
    if (strncmp(text, "idx:", 4) == 0)
        return set_idx(dataset, text + 4, err);
    const bool folder = stat(text, &st) == 0 && S_ISDIR(st.st_mode);
    json_object_set_new(dataset, "reader", json_string(folder ? "folder" : "list"));
    return set_path(dataset, folder ? "root" : "list", text, err);
}

/* ---- the program ---- */

static void find_program(char program[PATH_MAX])
{
    static const char *const places[] = {"feedd", "../sbin/feedd", "../bin/feedd", "../daemon/feedd"};
    const char *named = getenv("FEEDD_PROGRAM");
    if (named != NULL && named[0] != '\0') {
        snprintf(program, PATH_MAX, "%s", named);
        return;
    }
    char own[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        slash[1] = '\0';
        if (snprintf(program, PATH_MAX, "%s%s", own, places[i]) < PATH_MAX && access(program, X_OK) == 0)
            return;
    }
    strcpy(program, "feedd");
}

int private_init(struct private_daemon *daemon, const char *dataset, bool gpus, struct feedd_error *err)
{
    *daemon = (struct private_daemon){.dataset = json_object(), .gpus = gpus};
    int status = describe_dataset(daemon->dataset, dataset, err);
    const char *temporary = getenv("TMPDIR");
    if (temporary == NULL || temporary[0] != '/' || strlen(temporary) > 32)
        temporary = "/tmp";
    snprintf(daemon->folder, sizeof(daemon->folder), "%s/feedctl-bench-XXXXXX", temporary);
    if (status == 0 && mkdtemp(daemon->folder) == NULL)
        status = error_set(err, FEEDD_E_IO, "making the folder %s: %s", daemon->folder, strerror(errno));
    if (status != 0) {
        json_decref(daemon->dataset);
        *daemon = (struct private_daemon){.pid = 0};
        return status;
    }
    find_program(daemon->program);
    return 0;
}

/* ---- from start to end ---- */

static void path_in(const struct private_daemon *daemon, const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", daemon->folder, name);
}

/* JSON is YAML. */
static int write_config(const struct private_daemon *daemon, uint32_t workers, const char *path,
                        struct feedd_error *err)
{
    char cache[128];
    path_in(daemon, "cache", cache);
    json_t *config = json_pack("{s:{s:i, s:s, s:i, s:i, s:s}, s:{s:O}}", "daemon", "workers", (int)workers, "cache_dir",
                               cache, "linger_s", LINGER_S, "clients_max", CLIENTS, "gpus",
                               daemon->gpus ? "all" : "none", "datasets", PRIVATE_DATASET, daemon->dataset);
    int written = config != NULL ? json_dump_file(config, path, 0) : -1;
    json_decref(config);
    return written == 0 ? 0 : error_set(err, FEEDD_E_IO, "writing %s: %s", path, strerror(errno));
}

/* In the child. */
static _Noreturn void exec_daemon(const struct private_daemon *daemon, const char *config, int out, int log,
                                  pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in >= 0 && dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execlp(daemon->program, "feedd", "--private", "--config", config, (char *)NULL);
    dprintf(log, "%s can't be run: %s; install feedd, or name it in FEEDD_PROGRAM\n", daemon->program, strerror(errno));
    _exit(127);
}

/* A line from a pipe, without its end. @return false: it ended before, or a signal came */
static bool read_line(int fd, char *line, size_t size)
{
    size_t length = 0;
    while (length < size - 1 && read(fd, &line[length], 1) == 1)
        if (line[length++] == '\n') {
            line[length - 1] = '\0';
            return true;
        }
    return false;
}

/* The last line of what it wrote, without the level that begins each of a daemon's. */
static int log_error(int log, struct feedd_error *err)
{
    char end[LOG_BYTES + 1];
    const off_t size = lseek(log, 0, SEEK_END);
    ssize_t length = pread(log, end, LOG_BYTES, size > LOG_BYTES ? size - LOG_BYTES : 0);
    while (length > 0 && end[length - 1] == '\n')
        length--;
    end[length > 0 ? length : 0] = '\0';
    const char *line = strrchr(end, '\n');
    line = line != NULL ? line + 1 : end;
    if (line[0] == '<' && line[1] != '\0' && line[2] == '>')
        line += 3;
    return error_set(err, FEEDD_E_CONNECTION, "the private feedd didn't start: %s",
                     line[0] != '\0' ? line : "no reason");
}

int private_start(struct private_daemon *daemon, uint32_t workers, struct feedd_error *err)
{
    char config[128], log_path[128];
    int out[2] = {-1, -1};
    path_in(daemon, "feedd.conf", config);
    path_in(daemon, "log", log_path);
    int status = write_config(daemon, workers, config, err);
    if (status != 0)
        return status;
    int log = open(log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0 || pipe2(out, O_CLOEXEC) != 0) {
        status = error_set(err, FEEDD_E_IO, "starting feedd: %s", strerror(errno));
        goto out;
    }
    const pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid == 0)
        exec_daemon(daemon, config, out[1], log, parent);
    if (daemon->pid < 0) {
        daemon->pid = 0;
        status = error_set(err, FEEDD_E_IO, "starting feedd: %s", strerror(errno));
        goto out;
    }
    close(out[1]);
    out[1] = -1;
    if (!read_line(out[0], daemon->socket, sizeof(daemon->socket))) {
        private_stop(daemon);
        status = log_error(log, err);
    }
out:
    for (int i = 0; i < 2; i++)
        if (out[i] >= 0)
            close(out[i]);
    if (log >= 0)
        close(log);
    return status;
}

void private_stop(struct private_daemon *daemon)
{
    if (daemon->pid <= 0)
        return;
    kill(daemon->pid, SIGTERM);
    for (int waited_ms = 0; waitpid(daemon->pid, NULL, WNOHANG) == 0; waited_ms++) {
        if (waited_ms == STOP_MS)
            kill(daemon->pid, SIGKILL);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    daemon->pid = 0;
    daemon->socket[0] = '\0';
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st;
    (void)type;
    (void)place;
    remove(path);
    return 0;
}

void private_done(struct private_daemon *daemon)
{
    private_stop(daemon);
    if (daemon->folder[0] != '\0')
        nftw(daemon->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    json_decref(daemon->dataset);
    *daemon = (struct private_daemon){.pid = 0};
}
