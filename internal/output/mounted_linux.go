package output

import "golang.org/x/sys/unix"

// mounted reports whether a file system is mounted at the file, as for single files of the host in
// a container. Another file cannot be renamed to such a name.
func mounted(name string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, 0, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
