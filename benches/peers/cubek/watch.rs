//! Handles strategies that never end or that end the process: a worker process reports what it tries, and if
//! it stops reporting, another worker continues without that strategy.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::{Result, text};

/// The prefix of the line that a worker prints before it tries a strategy; its other lines are rows.
pub(crate) const TRYING: &str = "trying ";

/// Runs cases in workers and passes on a row for each. `worker` starts one that skips the first cases and the
/// strategies that were given up; `failed` makes the row of a case whose worker stopped before it tried
/// anything.
pub(crate) fn watch(
    cases: usize,
    limit: Duration,
    mut worker: impl FnMut(usize, &[String]) -> Command,
    failed: impl Fn(usize, &str) -> String,
    mut pass_on: impl FnMut(&str),
) -> Result<()> {
    let (mut done, mut given_up) = (0, Vec::new());
    while done < cases {
        let at_work = Worker::start(worker(done, &given_up))?;
        let mut trying = None;
        let stopped = loop {
            match at_work.lines.recv_timeout(limit) {
                Ok(line) => match line.strip_prefix(TRYING) {
                    Some(strategy) => trying = Some(strategy.to_owned()),
                    None => {
                        pass_on(&line);
                        (done, trying) = (done + 1, None);
                    }
                },
                Err(RecvTimeoutError::Timeout) => break format!("not done after {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => break "it ended the process".into(),
            }
        };
        drop(at_work);
        match trying {
            Some(strategy) => {
                eprintln!("cubek: {strategy}: {stopped}");
                given_up.push(strategy);
            }
            None if done < cases => {
                pass_on(&failed(done, &stopped));
                done += 1;
            }
            None => {}
        }
    }
    Ok(())
}

/// A process and the lines that it prints. It is killed when this is dropped.
struct Worker {
    process: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(mut command: Command) -> Result<Self> {
        let mut process = command.stdout(Stdio::piped()).spawn().map_err(text)?;
        let (told, lines) = mpsc::channel();
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(std::result::Result::ok);
                lines.map(|line| told.send(line)).take_while(std::result::Result::is_ok).count()
            });
        }
        Ok(Self { process, lines })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // If it has already ended, there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Simulates a worker on three cases: a strategy of the second hangs, one of the third ends the process.
    fn rows(script: &str) -> (Vec<String>, Vec<Vec<String>>) {
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        let worker = |done: usize, given_up: &[String]| {
            starts.push(given_up.to_vec());
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", &done.to_string()]).args(given_up);
            command
        };
        let failed = |case: usize, why: &str| format!("failed {case}: {why}");
        watch(3, Duration::from_secs(2), worker, failed, |row| rows.push(row.into())).unwrap();
        (rows, starts)
    }

    #[test]
    fn what_hangs_is_left_out_and_the_rest_is_done() {
        let (rows, starts) = rows(
            "done=$1; shift
             case $done in 0) echo 'trying a'; echo row 0;; esac
             case $done in 0|1) echo 'trying a'
                case \"$*\" in *b*) ;; *) echo 'trying b'; exec sleep 60;; esac
                echo row 1;; esac
             echo 'trying a'
             case \"$*\" in *c*) ;; *) echo 'trying c'; kill -9 $$;; esac
             echo row 2",
        );
        assert_eq!(rows, ["row 0", "row 1", "row 2"]);
        assert_eq!(starts, [vec![], vec!["b".to_owned()], vec!["b".into(), "c".into()]]);
    }

    #[test]
    fn a_case_that_never_comes_to_a_strategy_is_a_row_that_says_so() {
        let (hung, _) = rows("echo row $1; case $1 in 0) exec sleep 60;; esac");
        assert_eq!(hung, ["row 0", "failed 1: not done after 2s", "row 2"]);
        let (ended, _) = rows("echo row $1");
        assert_eq!(ended, ["row 0", "failed 1: it ended the process", "row 2"]);
    }
}
