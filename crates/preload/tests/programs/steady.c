/* Writes blocks for as long as there is no file named `stop`, reads each back, and says how many: steady DIRECTORY. */
#include "check.h"

enum { BLOCK = 30000, BLOCKS = 64 };

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char *path = in(argv[1], "steady"), *stop = in(argv[1], "stop"), block[BLOCK], back[BLOCK];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    long turns = 0;
    puts("begun");
    fflush(stdout);
    for (; turns < 3 * BLOCKS || access(stop, F_OK) != 0; turns++) {
        off_t at = turns % BLOCKS * BLOCK;
        memset(block, (int)(turns % 251), BLOCK);
        CHECK(lseek(fd, at, SEEK_SET) == at && write(fd, block, BLOCK) == BLOCK);
        CHECK(pread(fd, back, BLOCK, at) == BLOCK && memcmp(block, back, BLOCK) == 0);
    }
    for (long turn = turns - BLOCKS; turn < turns; turn++) {
        CHECK(pread(fd, back, BLOCK, turn % BLOCKS * BLOCK) == BLOCK);
        for (int i = 0; i < BLOCK; i++)
            CHECK((unsigned char)back[i] == turn % 251);
    }
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == BLOCK * BLOCKS && close(fd) == 0);
    printf("%ld\n", turns);
    return 0;
}
