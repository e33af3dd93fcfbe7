package output

import (
	"errors"
	"os"
	"path/filepath"
)

// pending is a temporary file that will replace another one. Package renameio has none for Windows.
type pending struct {
	*os.File
	name string
}

func createPending(name string) (file, error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name))
	return pending{f, name}, err
}

func (p pending) commit() error {
	err := errors.Join(p.Sync(), p.Close())
	if err == nil {
		err = os.Rename(p.Name(), p.name)
	}
	if err != nil {
		_ = os.Remove(p.Name())
	}
	return err
}

func (p pending) discard() error { return errors.Join(p.Close(), os.Remove(p.Name())) }
