/* A disk that is slow or fails, for one folder: LD_PRELOAD it into a process.
 *
 * SLOW_DISK_FOLDER names the folder. SLOW_DISK_CONTROL names a file with four numbers, read before each write to a file
 * below that folder, so that a test changes the disk while the process runs:
 *   DELAY_MS EVERY FAIL_EVERY SHORT_EVERY
 * Every EVERY-th write is delayed by DELAY_MS; every FAIL_EVERY-th fails with EIO; every SHORT_EVERY-th writes only half
 * of its data. 0 means never. A delay ends early when the control file says 0: the disk hangs and then responds again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int);
static int count;

static int is_slow_file(int fd) {
    const char *folder = getenv("SLOW_DISK_FOLDER");
    char link[64], path[4096];
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static void read_control(int *settings) {
    memset(settings, 0, 4 * sizeof(int));
    const char *name = getenv("SLOW_DISK_CONTROL");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%d %d %d %d", settings, settings + 1, settings + 2, settings + 3) != 4)
        memset(settings, 0, 4 * sizeof(int));
    fclose(file);
}

static void wait_for(int milliseconds) {
    struct timespec piece = {0, 10 * 1000 * 1000};
    int settings[4];
    for (int passed = 0; passed < milliseconds; passed += 10) {
        nanosleep(&piece, NULL);
        read_control(settings);
        if (settings[0] == 0) return;
    }
}

ssize_t write(int fd, const void *data, size_t size) {
    if (!real_write) real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (!is_slow_file(fd)) return real_write(fd, data, size);
    int settings[4];
    read_control(settings);
    int number = __sync_add_and_fetch(&count, 1);
    if (settings[0] && settings[1] && number % settings[1] == 0) wait_for(settings[0]);
    if (settings[2] && number % settings[2] == 0) {
        errno = EIO;
        return -1;
    }
    if (settings[3] && number % settings[3] == 0 && size > 1) size /= 2;
    return real_write(fd, data, size);
}

int fsync(int fd) {
    if (!real_fsync) real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int settings[4];
    read_control(settings);
    if (settings[0] && is_slow_file(fd)) wait_for(settings[0]);
    return real_fsync(fd);
}
