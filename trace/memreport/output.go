package main

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// output is the file that the page goes to. It gets its name when it is complete, so that a reader never sees half of it, unless the name
// is that of something which is no file to be replaced: a device, a pipe.
type output struct {
	file *os.File
	name string // "": the file has it
}

// create begins the file of a name. Where a link leads to is what is written.
func create(name string) (*output, error) {
	if to, err := filepath.EvalSymlinks(name); err == nil {
		name = to
	}
	mode, replaced := fs.FileMode(0), false
	if info, err := os.Stat(name); err == nil {
		if !info.Mode().IsRegular() {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			return &output{file: f}, err
		}
		mode, replaced = info.Mode().Perm(), true
	}
	// Not os.CreateTemp, whose files have a mode of their own: the umask decides.
	f, err := os.OpenFile(filepath.Join(filepath.Dir(name), ".memreport-"+strconv.FormatUint(rand.Uint64(), 36)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	out := &output{file: f, name: name}
	if replaced {
		if err := f.Chmod(mode); err != nil {
			return nil, out.finish(err)
		}
	}
	return out, nil
}

// finish closes the file, and gives it its name if there was no error. Otherwise it leaves none behind.
func (o *output) finish(err error) error {
	err = errors.Join(err, o.file.Close())
	if o.name == "" {
		return err
	}
	if err == nil {
		err = os.Rename(o.file.Name(), o.name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(o.file.Name()))
	}
	return err
}
