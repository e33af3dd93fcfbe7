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

// build builds the player of this version twice: in the tree of the commit before, which is laid out below dir, and in this one.
func build(ctx context.Context, dir, before string, players [2]string) error {
	out, err := command(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(out))
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	archive, err := command(ctx, root, "git", "archive", "--format=tar", "-o", filepath.Join(dir, "tree.tar"), before)
	if err != nil {
		return fmt.Errorf("the version before: %w%s", err, archive)
	}
	if _, err := command(ctx, tree, "tar", "-xf", "../tree.tar"); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(tree, player)); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(tree, player), os.DirFS(filepath.Join(root, player))); err != nil {
		return err
	}
	for i, at := range [2]string{tree, root} {
		if _, err := command(ctx, at, "go", "build", "-o", players[i], "./"+player); err != nil {
			return fmt.Errorf("building the player of %s: %w", [2]string{before, "this version"}[i], err)
		}
	}
	return nil
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
