// Package output writes files that are complete or not there at all, and never over their inputs.
package output

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Check returns an error if name is one of the files that the result is made from: two paths are the
// same file if the file system says so. The input "-" is the standard input. Nor must the folder of name
// be missing.
func Check(name string, inputs ...string) error {
	out, err := os.Stat(name)
	if err != nil {
		if info, err := os.Stat(filepath.Dir(name)); err != nil || !info.IsDir() {
			return fmt.Errorf("%s can't be written: there is no folder %s", name, filepath.Dir(name))
		}
		return nil
	}
	for _, input := range inputs {
		in, err := os.Stat(input)
		if input == "-" {
			in, err = os.Stdin.Stat()
		}
		if err == nil && os.SameFile(in, out) && out.Mode().IsRegular() {
			return fmt.Errorf("%s is the input %s, which would be overwritten; choose another name", name, input)
		}
	}
	return nil
}

// Write calls write for the contents of a file. The file gets its name when it is complete and on the
// disk; after an error the file of that name, if there is one, is what it was. A symbolic link stays,
// and the file that it leads to is replaced. A pipe or a device is written to as it is.
func Write(name string, write func(io.Writer) error) error {
	if to, err := filepath.EvalSymlinks(name); err == nil {
		name = to
	}
	f, err := create(name)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriter(f)
	if err = write(buffer); err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		_ = f.discard()
		return err
	}
	return f.commit()
}

// file is an output that is not complete.
type file interface {
	io.Writer
	commit() error
	discard() error
}

func create(name string) (file, error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return special{f}, err
	}
	return createPending(name)
}

// special is a pipe or a device.
type special struct{ *os.File }

func (s special) commit() error  { return s.Close() }
func (s special) discard() error { return s.Close() }
