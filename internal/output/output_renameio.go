//go:build !windows

package output

import (
	"path/filepath"

	"github.com/google/renameio/v2"
)

// pending is a file beside the one that it is going to replace.
type pending struct{ *renameio.PendingFile }

func createPending(name string) (file, error) {
	f, err := renameio.NewPendingFile(name, renameio.WithTempDir(filepath.Dir(name)), renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
	return pending{f}, err
}

func (p pending) commit() error {
	err := p.CloseAtomicallyReplace()
	_ = p.Cleanup() // which does nothing if that succeeded
	return err
}

func (p pending) discard() error { return p.Cleanup() }
