package output

import (
	"fmt"
	"io"
	"os"
)

// Stream opens a file that is read while the program writes it, or after the program was killed. It
// replaces a file of that name by a new one with the same permissions, so that the streams of two
// programs don't mix, unless appends, which goes on with the file. A pipe or a character device is
// written to as it is.
func Stream(name string, appends bool) (io.WriteCloser, error) {
	kind, old, err := look(name)
	if err != nil {
		return nil, err
	}
	permissions := os.FileMode(0o666)
	switch {
	case kind == special || kind == standard:
		return openSpecial(name, kind)
	case kind == regular && appends:
		return reopen(name, old)
	case kind == regular:
		permissions = old.Mode().Perm()
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return open(name, os.O_CREATE|os.O_EXCL, permissions)
}

// open returns nil with an error, and not an interface of a nil file.
func open(name string, flag int, permissions os.FileMode) (io.WriteCloser, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|flag, permissions)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// reopen opens a file to append to it, unless the name leads to another one by now.
func reopen(name string, old os.FileInfo) (io.WriteCloser, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(old, now) {
		_ = f.Close()
		return nil, fmt.Errorf("%s can't be written: it was replaced meanwhile", name)
	}
	return f, nil
}
