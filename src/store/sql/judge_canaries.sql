-- Ends canaries that are clearly worse than the stable version beside them; which, and why.
select job_type, canary, stable, reason from piecework.judge_canaries()
