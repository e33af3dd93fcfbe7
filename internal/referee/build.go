package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const player = "internal/referee/player"

// build builds the player of this version twice, into players: in the trees of the two versions, which are laid out below dir, or in
// this one for a version that is "".
func build(ctx context.Context, dir string, versions, players [2]string) error {
	out, err := command(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(out))
	for i, version := range versions {
		tree := root
		if version != "" {
			tree = filepath.Join(dir, [2]string{"before", "now"}[i])
			if err := layOut(ctx, tree, root, version); err != nil {
				return fmt.Errorf("the version %s: %w", version, err)
			}
		}
		if _, err := command(ctx, tree, "go", "build", "-o", players[i], "./"+player); err != nil {
			return fmt.Errorf("building the player of %s: %w", named(version), err)
		}
	}
	return nil
}

// layOut makes tree a version of the repository at root, with the player that is in root.
func layOut(ctx context.Context, tree, root, version string) error {
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if _, err := command(ctx, root, "git", "archive", "--format=tar", "-o", tree+".tar", version); err != nil {
		return err
	}
	if _, err := command(ctx, tree, "tar", "-xf", tree+".tar"); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(tree, player)); err != nil {
		return err
	}
	return os.CopyFS(filepath.Join(tree, player), os.DirFS(filepath.Join(root, player)))
}

// named is what a version is called: "" is that of the working tree.
func named(version string) string {
	if version == "" {
		return "this version"
	}
	return version
}

// command runs a program, and puts what it printed into the error.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var printed bytes.Buffer
	cmd.Stderr = &printed
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, printed.Bytes())
	}
	return out, nil
}
